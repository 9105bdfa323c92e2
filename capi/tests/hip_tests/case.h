/*
 * A case is a function that returns if all checks pass. Each runs in a process of its own, forked
 * before any runtime is open, so that a crash ends only that case.
 *
 * A test program prints a line for each case: "ok NAME", "FAILED NAME: file:line: what" or "skipped
 * NAME: why". Its exit status is 1 if a case has failed. Its arguments are the names of the cases
 * to run; all if there are none.
 *
 * C99 and C++17.
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

/* Also ends children of a case; their parents detect it by wait_for(). */
static inline void failed(const char *file, int line, const char *what, const char *words) {
  const char *last = strrchr(file, '/');
  printf("FAILED %s: %s:%d: %s%s%s\n", current_case, last ? last + 1 : file, line, what,
         *words ? ": " : "", words);
  fflush(stdout);
  _exit(FAILED);
}

static inline void expect_error(hipError_t is, hipError_t expected, const char *call,
                                const char *file, int line) {
  char words[1400];
  if (is == expected) return;
  snprintf(words, sizeof words, "%s, not %s; last message: %s", hipGetErrorName(is),
           hipGetErrorName(expected), hsavmm_last_message());
  failed(file, line, call, words);
}

/* Each ends the case with a failure unless the condition holds. */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) failed(__FILE__, __LINE__, #condition, "");                                  \
  } while (0)
#define EXPECT_ERROR(call, code) expect_error(call, code, #call, __FILE__, __LINE__)
#define EXPECT_SUCCESS(call) EXPECT_ERROR(call, hipSuccess)

/* Ends the case as skipped. */
static inline void skip(const char *why) {
  printf("skipped %s: %s\n", current_case, why);
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

static inline hipError_t by_profile(hipError_t hip6, hipError_t hip7) {
  return profile() == 6 ? hip6 : hip7;
}

static inline int open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  CHECK(folder != NULL);
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

/* Checks that the library's state is consistent and that this process holds no resources. */
static inline void nothing_is_left(void) {
  hsavmm_usage usage;
  EXPECT_SUCCESS(hsavmm_check());
  EXPECT_SUCCESS(hsavmm_count(&usage));
  CHECK(usage.reservations == 0);
  CHECK(usage.handles == 0);
  CHECK(usage.mappings == 0);
  CHECK(usage.quarantined == 0);
}

/* Runs a case in its own process. */
static inline void run_here(const struct test_case *one) {
  int before, after;
  current_case = one->name;
  before = open_descriptors();
  one->run();
  nothing_is_left();
  EXPECT_SUCCESS(hsavmm_shut_down());
  /* AMD's runtime keeps descriptors of its own; the simulation has none, and this library closes
   * all. */
  after = open_descriptors();
  if (getenv("HSA_SIM") != NULL) CHECK(after == before);
  /* Exits normally, with all exit handlers. */
  exit(PASSED);
}

/* Runs a case in a child. Returns whether it passed or was skipped. */
static inline int run_case(const struct test_case *one) {
  int status = 0;
  pid_t child;
  fflush(stdout);
  child = fork();
  if (child == 0) run_here(one);
  if (child < 0 || waitpid(child, &status, 0) != child) {
    perror(one->name);
    exit(FAILED);
  }
  if (WIFSIGNALED(status)) {
    printf("FAILED %s: killed by signal %d\n", one->name, WTERMSIG(status));
    return 0;
  }
  if (WEXITSTATUS(status) == PASSED) printf("ok %s\n", one->name);
  return WEXITSTATUS(status) == PASSED || WEXITSTATUS(status) == SKIPPED;
}

static inline int is_wanted(const char *name, int count, char **names) {
  int wanted = count == 1, index;
  for (index = 1; index < count; index++) wanted |= strcmp(names[index], name) == 0;
  return wanted;
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
      if (!is_wanted(all[index].name, count, names)) continue;                                     \
      passed &= run_case(&all[index]);                                                             \
      ran++;                                                                                       \
    }                                                                                              \
    return passed && ran > 0 ? 0 : 1;                                                              \
  }

#endif
