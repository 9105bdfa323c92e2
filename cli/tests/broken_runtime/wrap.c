/* Wraps the runtime that this library is linked with. Calls fail according to the environment variable BREAK. BREAK
 * contains rules `FUNCTION:N:EFFECT:WHEN`, separated by `;`. A rule applies to the N-th call of the function in a
 * process.
 * EFFECT: `segv`, `abort`, `exit`, `hang`, `slow` (takes two seconds), `chatter` (prints to standard output and
 * continues) or `child` (starts a child process and crashes).
 * WHEN: `always`, `once` or `after`. The variable MARK names a file. `once` applies only if the file does not exist,
 * and creates it. `after` applies only if the file exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void apply_effect(const char *effect)
{
    if (strcmp(effect, "chatter") == 0) {
        printf("{\"not\": \"ours\"}\nno JSON at all\n");
        fflush(stdout);
        return;
    }
    if (strcmp(effect, "slow") == 0) {
        sleep(2);
        return;
    }
    if (strcmp(effect, "child") == 0 && fork() == 0)
        for (;;)
            pause();
    if (strcmp(effect, "segv") == 0 || strcmp(effect, "child") == 0)
        *(volatile int *)8 = 0;
    if (strcmp(effect, "abort") == 0)
        abort();
    if (strcmp(effect, "exit") == 0)
        _exit(7);
    for (;;)
        pause();
}

static void apply_plan(const char *function, int call)
{
    const char *plan = getenv("BREAK"), *mark = getenv("MARK");
    char *copy = strdup(plan ? plan : ""), *rest = copy, *rule;
    while ((rule = strsep(&rest, ";"))) {
        const char *name = strsep(&rule, ":"), *number = strsep(&rule, ":");
        const char *effect = strsep(&rule, ":"), *when = rule;
        if (!number || !effect || !when || strcmp(name, function) != 0 || atoi(number) != call)
            continue;
        if (strcmp(when, "after") == 0 && (!mark || access(mark, F_OK) != 0))
            continue;
        if (strcmp(when, "once") == 0 && open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600) < 0)
            continue;
        apply_effect(effect);
    }
    free(copy);
}

typedef uint64_t any;

#define WRAP(name)                                                                                 \
    int name(any a, any b, any c, any d, any e, any f)                                             \
    {                                                                                              \
        static int calls;                                                                          \
        apply_plan(#name, __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST));                        \
        void *real = dlsym(dlopen(REAL, RTLD_NOW), #name);                                         \
        return ((int (*)(any, any, any, any, any, any))real)(a, b, c, d, e, f);                    \
    }

WRAP(hsa_init)
WRAP(hsa_shut_down)
WRAP(hsa_amd_vmem_map)
WRAP(hsa_amd_vmem_unmap)
WRAP(hsa_amd_vmem_handle_release)
