/* Calls every function in a forked child of a busy process. Each function must return, and a function that
 * needs the runtime must fail. Arguments: the number of forks, and the names of all functions. Prints
 * the names of the functions that succeeded. Standard error is left to the log (HSA_VMM_LOG). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <hsavmm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 5, LOGGING_THREADS = 2, MAX_FUNCTIONS = 256, SIZE = 2 << 20 };

static volatile int stop;
static hsavmm_area_t area;

static void *make_calls(void *unused) {
  while (!stop) {
    void *memory, *mapped;
    hsavmm_usage usage;
    hipPointerAttribute_t attributes;
    if (hipMalloc(&memory, 4096) != hipSuccess) abort();
    if (hipPointerGetAttributes(&attributes, memory) != hipSuccess) abort();
    if (hipFree(memory) != hipSuccess) abort();
    if (hipMemAddressReserve(&mapped, SIZE, 0, NULL, 0) != hipSuccess) abort();
    if (hsavmm_count(&usage) != hipSuccess || hsavmm_check() != hipSuccess) abort();
    if (hipMemAddressFree(mapped, SIZE) != hipSuccess) abort();
    if (hsavmm_area_mmap(area, &mapped, 4096, NULL) != hipSuccess) abort();
    if (hsavmm_area_munmap(area, mapped) != hipSuccess) abort();
  }
  return unused;
}

/* Makes calls that fail. With HSA_VMM_LOG=warn, each of them writes a line to standard error. */
static void *make_failing_calls(void *unused) {
  while (!stop)
    if (hipFree(&area) != hipErrorInvalidValue) abort();
  return unused;
}

/* The function that the child is calling, and the functions that have succeeded. */
struct progress {
  int function;
  int succeeded[MAX_FUNCTIONS];
};

typedef long (*function)(void *, void *, void *, void *, void *, void *, void *, void *);

/* Every argument is the address of this array. A function uses the argument as a pointer to a
 * result, as an empty string, or as a large number. */
static char zeros[1 << 16];

static void call_every_function(int count, char **names, struct progress *progress) {
  alarm(10);
  for (int index = 0; index < count; index++) {
    void *symbol = dlsym(RTLD_DEFAULT, names[index]);
    function call;
    if (symbol == NULL) _exit(2);
    memcpy(&call, &symbol, sizeof call);
    progress->function = index;
    memset(zeros, 0, sizeof zeros);
    int error = (int)call(zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros);
    if (error == 0) progress->succeeded[index] = 1;
  }
  _exit(0);
}

int main(int count, char **arguments) {
  int forks = atoi(arguments[1]);
  char **names = arguments + 2;
  count -= 2;
  if (count > MAX_FUNCTIONS) return 1;
  if (hsavmm_area_create(&area, 0, 0) != hipSuccess) return 1;
  struct progress *progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (progress == MAP_FAILED) return 1;
  pthread_t threads[THREADS];
  for (int index = 0; index < THREADS; index++)
    if (pthread_create(&threads[index], NULL,
                       index < LOGGING_THREADS ? make_failing_calls : make_calls, NULL) != 0)
      return 1;
  for (int number = 0; number < forks; number++) {
    pid_t pid = fork();
    if (pid == 0) call_every_function(count, names, progress);
    int status;
    if (waitpid(pid, &status, 0) != pid) return 1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      printf("fork %d: %s: status %#x\n", number, names[progress->function], status);
      return 1;
    }
  }
  stop = 1;
  for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
  for (int index = 0; index < count; index++)
    if (progress->succeeded[index]) printf("%s\n", names[index]);
  hsavmm_usage usage;
  if (hsavmm_count(&usage) != hipSuccess || hsavmm_check() != hipSuccess) return 1;
  return hsavmm_shut_down() == hipSuccess ? 0 : 1;
}
