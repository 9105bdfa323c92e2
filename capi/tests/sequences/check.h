/* Macros that end the program when a call fails or a condition is false. */
#ifndef CHECK_H
#define CHECK_H

#include <hip/hip_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, hipGetErrorString(hipGetLastError()));
  exit(1);
}
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))
#define OK(call) CHECK((call) == hipSuccess)

#endif
