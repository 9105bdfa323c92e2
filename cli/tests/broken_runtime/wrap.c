/* A runtime like the one it is linked with, but for what the variable BREAK says:
 * `FUNCTION:N:HOW:WHEN`, several with `;` between them. The function's Nth call of a process goes
 * wrong: `segv`, `abort`, `exit`, `hang`, `slow` (takes two seconds), `chatter` (prints to standard
 * output, and goes on) or `child` (leaves a process behind, and crashes). `once`: only if the file MARK could be made, which
 * one process can; `after`: only if it is there; `always`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void go_wrong(const char *how)
{
    if (strcmp(how, "chatter") == 0) {
        printf("{\"not\": \"ours\"}\nno JSON at all\n");
        fflush(stdout);
        return;
    }
    if (strcmp(how, "slow") == 0) {
        sleep(2);
        return;
    }
    if (strcmp(how, "child") == 0 && fork() == 0)
        for (;;)
            pause();
    if (strcmp(how, "segv") == 0 || strcmp(how, "child") == 0)
        *(volatile int *)8 = 0;
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "exit") == 0)
        _exit(7);
    for (;;)
        pause();
}

static void maybe(const char *function, int call)
{
    const char *plan = getenv("BREAK"), *mark = getenv("MARK");
    char *copy = strdup(plan ? plan : ""), *rest = copy, *rule;
    while ((rule = strsep(&rest, ";"))) {
        const char *name = strsep(&rule, ":"), *number = strsep(&rule, ":");
        const char *how = strsep(&rule, ":"), *when = rule;
        if (!number || !how || !when || strcmp(name, function) != 0 || atoi(number) != call)
            continue;
        if (strcmp(when, "after") == 0 && (!mark || access(mark, F_OK) != 0))
            continue;
        if (strcmp(when, "once") == 0 && open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600) < 0)
            continue;
        go_wrong(how);
    }
    free(copy);
}

typedef uint64_t any;

#define WRAP(name)                                                                                 \
    int name(any a, any b, any c, any d, any e, any f)                                             \
    {                                                                                              \
        static int calls;                                                                          \
        maybe(#name, __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST));                             \
        void *real = dlsym(dlopen(REAL, RTLD_NOW), #name);                                         \
        return ((int (*)(any, any, any, any, any, any))real)(a, b, c, d, e, f);                    \
    }

WRAP(hsa_init)
WRAP(hsa_shut_down)
WRAP(hsa_amd_vmem_map)
WRAP(hsa_amd_vmem_unmap)
WRAP(hsa_amd_vmem_handle_release)
