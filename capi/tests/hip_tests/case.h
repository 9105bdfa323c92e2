/*
 * Runs the cases in the C files of this folder: cases of hip-tests (AMD's tests of HIP), rewritten in C. "The original"
 * in a comment is hip-tests' own case.
 *
 * A case is a function that returns if all checks pass. Each case runs in its own process, forked
 * before any runtime is open, so that a crash ends only that case.
 *
 * A test program prints a line for each case: "ok NAME", "FAILED NAME: file:line: check" or "skipped
 * NAME: reason". Its exit status is 1 if a case has failed or no case has run. Its arguments are the names of the cases
 * to run. Without arguments, all cases run.
 *
 * This header is valid C99 and C++17.
 */
#ifndef HIP_TESTS_CASE_H
#define HIP_TESTS_CASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <hsavmm.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct test_case {
  const char *name;
  void (*run)(void);
};

/* The exit statuses of a case's process. */
enum { PASSED = 0, FAILED = 1, SKIPPED = 77 };

static const char *current_case = "";

/* Reports a failed check, and ends this process. If this process is a child of a case's process,
 * the parent then fails in wait_for() of process.h. */
static inline void fail(const char *file, int line, const char *check, const char *details) {
  const char *last = strrchr(file, '/');
  printf("FAILED %s: %s:%d: %s%s%s\n", current_case, last ? last + 1 : file, line, check,
         *details ? ": " : "", details);
  fflush(stdout);
  _exit(FAILED);
}

static inline void expect_error(hipError_t actual, hipError_t expected, const char *call,
                                const char *file, int line) {
  char details[1400];
  if (actual == expected) return;
  snprintf(details, sizeof details, "%s, not %s; last message: %s", hipGetErrorName(actual),
           hipGetErrorName(expected), hsavmm_last_message());
  fail(file, line, call, details);
}

/* These macros call fail() if a condition is false or a call returns another result. */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) fail(__FILE__, __LINE__, #condition, "");                                    \
  } while (0)
#define EXPECT_ERROR(call, code) expect_error(call, code, #call, __FILE__, __LINE__)
#define EXPECT_SUCCESS(call) EXPECT_ERROR(call, hipSuccess)

static inline void skip(const char *reason) {
  printf("skipped %s: %s\n", current_case, reason);
  fflush(stdout);
  _exit(SKIPPED);
}

/* Returns the HIP profile, 6 or 7. */
static inline int profile(void) {
  hsavmm_runtime_info info;
  EXPECT_SUCCESS(hsavmm_runtime(&info));
  CHECK(info.profile == 6 || info.profile == 7);
  return info.profile;
}

/* Returns `hip6` or `hip7`, depending on the profile in use. */
static inline hipError_t by_profile(hipError_t hip6, hipError_t hip7) {
  return profile() == 6 ? hip6 : hip7;
}

static inline int count_open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  CHECK(folder != NULL);
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

/* Checks that the library's state is consistent, and that no reservation, handle, mapping or quarantine is left. */
static inline void expect_no_resources(void) {
  hsavmm_usage usage;
  EXPECT_SUCCESS(hsavmm_check());
  EXPECT_SUCCESS(hsavmm_count(&usage));
  CHECK(usage.reservations == 0);
  CHECK(usage.handles == 0);
  CHECK(usage.mappings == 0);
  CHECK(usage.quarantined == 0);
}

/* Runs a case in this process, and exits. */
static inline void run_and_exit(const struct test_case *test) {
  int before, after;
  current_case = test->name;
  before = count_open_descriptors();
  test->run();
  expect_no_resources();
  EXPECT_SUCCESS(hsavmm_shut_down());
  /* AMD's runtime keeps some descriptors open. The simulation (HSA_SIM is set) and this library close all of their
   * descriptors. */
  after = count_open_descriptors();
  if (getenv("HSA_SIM") != NULL) CHECK(after == before);
  /* exit() instead of _exit(), so that all exit handlers run. */
  exit(PASSED);
}

/* Runs a case in a child process. Returns whether the case passed or was skipped. */
static inline int run_case(const struct test_case *test) {
  int status = 0;
  pid_t child;
  fflush(stdout);
  child = fork();
  if (child == 0) run_and_exit(test);
  if (child < 0 || waitpid(child, &status, 0) != child) {
    perror(test->name);
    exit(FAILED);
  }
  if (WIFSIGNALED(status)) {
    printf("FAILED %s: killed by signal %d\n", test->name, WTERMSIG(status));
    return 0;
  }
  if (WEXITSTATUS(status) == PASSED) printf("ok %s\n", test->name);
  return WEXITSTATUS(status) == PASSED || WEXITSTATUS(status) == SKIPPED;
}

static inline int is_selected(const char *name, int count, char **names) {
  int selected = count == 1, index;
  for (index = 1; index < count; index++) selected |= strcmp(names[index], name) == 0;
  return selected;
}

#define CASE(function)                                                                             \
  { #function, function }

/* Defines the table of a program's cases, and its main(). */
#define CASES(...)                                                                                 \
  int main(int count, char **names) {                                                              \
    static const struct test_case all[] = {__VA_ARGS__};                                           \
    int passed = 1, ran = 0;                                                                       \
    size_t index;                                                                                  \
    for (index = 0; index < sizeof all / sizeof *all; index++) {                                   \
      if (!is_selected(all[index].name, count, names)) continue;                                   \
      passed &= run_case(&all[index]);                                                             \
      ran++;                                                                                       \
    }                                                                                              \
    return passed && ran > 0 ? 0 : 1;                                                              \
  }

#endif
