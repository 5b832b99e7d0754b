/* Calls one function of a library: call_library LIBRARY FUNCTION FILE (run under emulation by emulated_cpu.py).
 *
 * FILE is a Call, followed by what its pointers point to, and is mapped into memory: what the function writes is in the
 * file afterwards.
 *
 * A function of any arguments is called as if it had 32 integers and 8 doubles, which 64-bit calling conventions of Linux
 * allow: integers and pointers take the same places, doubles have registers of their own, and what is too much is not
 * looked at.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define INTEGERS 32

typedef struct {
    int64_t result;
    uint64_t pointers;         /* a bit for each integer that is a place in the file */
    int64_t integers[INTEGERS];
    double doubles[8];
    char text[64];             /* to which the result points, where `is_text` */
    int64_t is_text;
} Call;

#define FOUR(x) x, x, x, x
#define EIGHT(x) FOUR(x), FOUR(x)
#define FOUR_OF(a, i) (a)[i], (a)[i + 1], (a)[i + 2], (a)[i + 3]
#define EIGHT_OF(a, i) FOUR_OF(a, i), FOUR_OF(a, i + 4)

typedef int64_t Function(EIGHT(int64_t), EIGHT(int64_t), EIGHT(int64_t), EIGHT(int64_t), EIGHT(double));

static void *check(void *found, const char *what) {
    if (found && found != MAP_FAILED) return found;
    fprintf(stderr, "%s: %s\n", what, dlerror());
    exit(1);
}

int main(int count, char **words) {
    struct stat status;
    if (count != 4) return 2;
    int file = open(words[3], O_RDWR);
    if (file < 0 || fstat(file, &status)) return 3;
    Call *call = check(mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), words[3]);
    Function *function = (Function *)(intptr_t)check(dlsym(check(dlopen(words[1], RTLD_NOW), words[1]), words[2]), words[2]);
    int64_t given[INTEGERS];
    for (int i = 0; i < INTEGERS; i++)
        given[i] = call->integers[i] + (call->pointers >> i & 1 ? (int64_t)(intptr_t)call : 0);
    call->result = function(EIGHT_OF(given, 0), EIGHT_OF(given, 8), EIGHT_OF(given, 16), EIGHT_OF(given, 24),
                            EIGHT_OF(call->doubles, 0));
    if (call->is_text && call->result) strncpy(call->text, (const char *)(intptr_t)call->result, sizeof call->text - 1);
    return 0;
}
