/*
 * What a case is: a function that ends if all is as it should be. Each runs in a process of its
 * own, forked before any runtime is open, so that a crash is its own.
 *
 * A program of cases prints a line for each: "ok NAME", "FAILED NAME: file:line: what" or "skipped
 * NAME: why", and ends with 1 if one has failed. Its arguments are the names of the cases to run;
 * all without any.
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

/* How a case's process ends. */
enum { PASSED = 0, FAILED = 1, SKIPPED = 77 };

static const char *current_case = "";

/* Also ends children of a case: their parents see it by wait_for(). */
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

/* Each ends the case unless it holds. */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) failed(__FILE__, __LINE__, #condition, "");                                  \
  } while (0)
#define EXPECT_ERROR(call, code) expect_error(call, code, #call, __FILE__, __LINE__)
#define EXPECT_SUCCESS(call) EXPECT_ERROR(call, hipSuccess)

/* Ends the case without a verdict. */
static inline void skip(const char *why) {
  printf("skipped %s: %s\n", current_case, why);
  fflush(stdout);
  _exit(SKIPPED);
}

/* Whose answers are given: HIP 6's or 7's. */
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

/* That the library's books are in order and that this process holds nothing any more. */
static inline void nothing_is_left(void) {
  hsavmm_usage usage;
  EXPECT_SUCCESS(hsavmm_check());
  EXPECT_SUCCESS(hsavmm_count(&usage));
  CHECK(usage.reservations == 0);
  CHECK(usage.handles == 0);
  CHECK(usage.mappings == 0);
  CHECK(usage.quarantined == 0);
}

/* What a case's process does. */
static inline void run_here(const struct test_case *one) {
  int before, after;
  current_case = one->name;
  before = open_descriptors();
  one->run();
  nothing_is_left();
  EXPECT_SUCCESS(hsavmm_shut_down());
  /* AMD's runtime keeps its own; the simulation has none, and this library gives all back. */
  after = open_descriptors();
  if (getenv("HSA_SIM") != NULL) CHECK(after == before);
  /* By the way that programs end, handlers and all. */
  exit(PASSED);
}

/* Whether it has passed or been skipped. */
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

/* The table of a program's cases, and its main(). */
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
