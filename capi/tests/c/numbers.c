/* Checks that the library never reuses the number of an object, even after it was shut down. */
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)

int main(void) {
  hsavmm_growable_t old = NULL;
  for (int round = 0; round < 20; round++) {
    hsavmm_growable_t buffer;
    void *start;
    size_t size;
    OK(hsavmm_growable_reserve(&buffer, 0, 64 << 20));
    EXPECT(buffer != NULL && buffer != old);
    if (old != NULL) {
      EXPECT(hsavmm_growable_destroy(old) == hipErrorInvalidHandle);
      EXPECT(hsavmm_growable_place(old, &start, &size) == hipErrorInvalidHandle);
    }
    OK(hsavmm_growable_place(buffer, &start, &size));
    old = buffer;
    OK(hsavmm_shut_down());
    EXPECT(hsavmm_growable_destroy(old) == hipErrorInvalidHandle);
  }
  puts("all checks passed");
  return 0;
}
