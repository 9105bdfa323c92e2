/* Loads and unloads the library, as plug-ins do, without closing the runtime: no load needs more descriptors than the
 * first. Argument: the path of the library. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOADS = 5 };

static int count_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (folder == NULL) abort();
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

static int load(const char *path) {
  int (*allocate)(void **, size_t), (*release)(void *);
  void *ptr, *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    puts(dlerror());
    exit(1);
  }
  *(void **)&allocate = dlsym(library, "hipMalloc");
  *(void **)&release = dlsym(library, "hipFree");
  if (allocate(&ptr, 4096) != 0 || release(ptr) != 0) abort();
  dlclose(library);
  return count_descriptors();
}

int main(int count, char **arguments) {
  if (count != 2) abort();
  int first = load(arguments[1]), last = first;
  for (int index = 1; index < LOADS; index++) last = load(arguments[1]);
  if (last != first) {
    printf("%d descriptors after the first load, %d after the last\n", first, last);
    return 1;
  }
  puts("all checks passed");
  return 0;
}
