/*
 * Helpers of cases with several processes: channels to children, which must be forked before the
 * runtime is open.
 */
#ifndef HIP_TESTS_PROCESS_H
#define HIP_TESTS_PROCESS_H

#include "case.h"

#include <sys/socket.h>

/* Forks a child and connects it by a channel. Stores this process's end of the channel in `*end`. Each process closes
 * the other end, so that it detects the exit of its peer. Returns 0 in the child, like fork. */
static inline pid_t fork_child(int *end) {
  int ends[2];
  pid_t child;
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  child = fork();
  CHECK(child >= 0);
  *end = ends[child == 0];
  CHECK(close(ends[child != 0]) == 0);
  return child;
}

static inline void send_bytes(int end, const void *bytes, size_t size) {
  CHECK(send(end, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static inline void receive_bytes(int end, void *bytes, size_t size) {
  CHECK(recv(end, bytes, size, 0) == (ssize_t)size);
}

union one_descriptor {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

/* Sends a descriptor and the size of its memory. */
static inline void send_descriptor(int end, int descriptor, size_t size) {
  union one_descriptor control;
  struct iovec data;
  struct msghdr message;
  struct cmsghdr *header;
  memset(&control, 0, sizeof control);
  memset(&message, 0, sizeof message);
  data.iov_base = &size;
  data.iov_len = sizeof size;
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  CHECK(sendmsg(end, &message, MSG_NOSIGNAL) == (ssize_t)sizeof size);
}

static inline int receive_descriptor(int end, size_t *size) {
  union one_descriptor control;
  struct iovec data;
  struct msghdr message;
  struct cmsghdr *header;
  int descriptor = -1;
  memset(&message, 0, sizeof message);
  data.iov_base = size;
  data.iov_len = sizeof *size;
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  CHECK(recvmsg(end, &message, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof *size);
  header = CMSG_FIRSTHDR(&message);
  CHECK(header != NULL && header->cmsg_type == SCM_RIGHTS);
  memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

/* Ends a child whose checks have passed, after checks of the library's state. */
static inline void end_child(int end) {
  expect_no_resources();
  EXPECT_SUCCESS(hsavmm_shut_down());
  CHECK(close(end) == 0);
  _exit(PASSED);
}

/* Closes this process's end of the channel, waits for the child, and checks that it has passed. */
static inline void wait_for(pid_t child, int end) {
  int status = 0;
  CHECK(close(end) == 0);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == PASSED);
}

#endif
