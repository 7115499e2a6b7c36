/* The bundled writer of the laboratory: numbered steps by every way in which programs write, each
 * made durable before the next begins and before its number is printed. So what a power cut leaves
 * is a prefix of them, to the step; crates/powercut/src/prefix.rs judges that, and is the other
 * half of this contract: the file `plan`, the names, a page for each step.
 *
 *   prefix [STEPS]      in an empty folder
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WAYS = 7, NAMES = 3, STEPS = 70, STEPS_MAX = 1000000 };

static uint64_t page[PAGE / 8] __attribute__((aligned(PAGE)));

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(2);
    }
}

/* The page of a step: its number in every eight bytes. */
static void fill(uint64_t step)
{
    for (size_t i = 0; i < PAGE / 8; i++)
        page[i] = step;
}

static int open_file(const char *name, int flags)
{
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0644);
    must(fd >= 0, name);
    return fd;
}

static void put(int fd, off_t at)
{
    must(pwrite(fd, page, PAGE, at) == PAGE, "pwrite");
}

static void sync_folder(void)
{
    int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(fd >= 0 && fsync(fd) == 0 && close(fd) == 0, "fsync of the folder");
}

static void write_whole(const char *name)
{
    int fd = open_file(name, O_TRUNC);
    put(fd, 0);
    must(fsync(fd) == 0 && close(fd) == 0, "fsync");
}

static int written, direct, dsync, whole;
static char *map;

/* Everything that is there before the first step, durable. */
static void prepare(uint64_t steps)
{
    size_t slots = steps / WAYS + 1;
    written = open_file("pwrite", 0);
    dsync = open_file("dsync", O_DSYNC);
    whole = open_file("syncfs", 0);
    direct = open_file("direct", O_DIRECT);
    int mapped = open_file("mmap", 0);
    must(ftruncate(mapped, (off_t)(slots * PAGE)) == 0, "ftruncate");
    map = mmap(NULL, slots * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    must(map != MAP_FAILED, "mmap");
    int plan = open_file("plan", 0);
    must(dprintf(plan, "%llu\n", (unsigned long long)steps) > 0, "write");
    must(syncfs(plan) == 0, "syncfs");
}

/* In the order of crates/powercut/src/prefix.rs. */
static void make(uint64_t step)
{
    off_t at = (off_t)(step / WAYS) * PAGE;
    char name[32];
    fill(step);
    switch (step % WAYS) {
    case 0:
        put(written, at);
        must(fdatasync(written) == 0, "fdatasync");
        break;
    case 1:
        memcpy(map + at, page, PAGE);
        must(msync(map + at, PAGE, MS_SYNC) == 0, "msync");
        break;
    case 2:
        put(direct, at);
        must(fdatasync(direct) == 0, "fdatasync");
        break;
    case 3:
        write_whole("renamed.new");
        snprintf(name, sizeof name, "renamed-%d", (int)(step / WAYS % NAMES));
        must(rename("renamed.new", name) == 0, "rename");
        sync_folder();
        break;
    case 4:
        snprintf(name, sizeof name, "file-%llu", (unsigned long long)step);
        write_whole(name);
        sync_folder();
        break;
    case 5:
        put(dsync, at);
        break;
    default:
        put(whole, at);
        must(syncfs(whole) == 0, "syncfs");
        break;
    }
}

int main(int argc, char **argv)
{
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : STEPS;
    if (steps < 1 || steps > STEPS_MAX) {
        fprintf(stderr, "prefix: 1 to %d steps\n", STEPS_MAX);
        return 2;
    }
    prepare(steps);
    for (uint64_t step = 1; step <= steps; step++) {
        make(step);
        must(dprintf(STDOUT_FILENO, "%llu\n", (unsigned long long)step) > 0, "write");
    }
    return 0;
}
