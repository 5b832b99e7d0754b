/* A plugin of QEMU that counts the instructions of a program: -plugin file=count_instructions.so,out=FILE.
 *
 * QEMU's header is in no package of Debian 12, so what is used of it is declared here: version 1 of the interface.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct qemu_plugin_tb;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, void (*)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_atexit_cb(uint64_t, void (*)(uint64_t, void *), void *);

int qemu_plugin_version = 1;
static uint64_t executed; /* by one thread: programs that are counted have no other */
static char path[4096];

static void run_block(unsigned cpu, void *instructions) {
    (void)cpu;
    executed += (uintptr_t)instructions;
}

static void translate_block(uint64_t id, struct qemu_plugin_tb *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, run_block, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void finish(uint64_t id, void *nothing) {
    FILE *out = fopen(path, "w");
    (void)id, (void)nothing;
    if (!out) return;
    fprintf(out, "%llu\n", (unsigned long long)executed);
    fclose(out);
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **words) {
    (void)info;
    if (count != 1 || strncmp(words[0], "out=", 4) || strlen(words[0]) >= sizeof path) return 1;
    strcpy(path, words[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate_block);
    qemu_plugin_register_atexit_cb(id, finish, NULL);
    return 0;
}
