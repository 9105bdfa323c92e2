/* Forks while other threads configure, open and close the runtime, and after all of them have ended. In a child, each
 * call must return: it succeeds, or the library says that it cannot be used. Argument: the number of forks. */
#define _GNU_SOURCE
#include <hsavmm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4 };

static volatile int stop;

static void *configure(void *unused) {
  while (!stop) {
    hipError_t error = hsavmm_use_profile(7);
    if (error != hipSuccess && error != hipErrorSetOnActiveProcess) abort();
  }
  return unused;
}

/* Closes the runtime and opens it again. */
static void *reopen(void *unused) {
  while (!stop) {
    if (hipInit(0) != hipSuccess) abort();
    if (hsavmm_shut_down() != hipSuccess) abort();
  }
  return unused;
}

/* Opens and closes the runtime in a child. Returns 0 if the calls succeed, 1 if the library rejects them. */
static int use_in_child(void) {
  void *memory;
  hipError_t error;
  alarm(20);
  error = hsavmm_use_profile(7);
  if (error == hipErrorNotInitialized) {
    return hipInit(0) == hipErrorNotInitialized && hsavmm_shut_down() == hipErrorNotInitialized ? 1 : 2;
  }
  if (error != hipSuccess) return 3;
  if (hipMalloc(&memory, 4096) != hipSuccess || hipFree(memory) != hipSuccess) return 4;
  return hsavmm_shut_down() == hipSuccess ? 0 : 5;
}

static int fork_once(void) {
  int status;
  pid_t pid = fork();
  if (pid == 0) _exit(use_in_child());
  if (waitpid(pid, &status, 0) != pid) abort();
  if (!WIFEXITED(status)) {
    printf("a child ended with status %#x\n", status);
    exit(1);
  }
  return WEXITSTATUS(status);
}

int main(int count, char **arguments) {
  int forks = count > 1 ? atoi(arguments[1]) : 1, number, index;
  pthread_t threads[THREADS];
  for (index = 0; index < THREADS; index++)
    if (pthread_create(&threads[index], NULL, index < 3 ? configure : reopen, NULL) != 0) return 1;
  for (number = 0; number < forks; number++) {
    int result = fork_once();
    if (result > 1) {
      printf("fork %d: %d\n", number, result);
      return 1;
    }
  }
  stop = 1;
  for (index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
  if (hsavmm_shut_down() != hipSuccess) return 1;
  /* The runtime is closed, and no call is running. */
  if (fork_once() != 0) return 1;
  if (hipInit(0) != hipSuccess) return 1;
  if (fork_once() != 1) return 1;
  puts("all checks passed");
  return 0;
}
