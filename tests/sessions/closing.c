/* closing FOLDER HOW: serves a file at FOLDER/served (FUSE): its closing is never answered, nor is
 * what is written to it.
 * HOW "range", which no file takes, or "sync": 80 processes ask about it, each in front of 20
 * fsyncs of FOLDER/file. Says "done" when all of these are answered, and a file that was asked
 * about like that is open nowhere any more once it has been closed.
 * HOW "hold": has it open. Says "ready", and of each line that it reads "sync 0" when it has
 * written to and synced FOLDER/file, opened anew with O_SYNC.
 * HOW "lock": the same beside a process that syncs FOLDER/file all the time and holds the lock of
 * its memory: it maps over what it has written to of the served file.
 * HOW "execute": as "hold" beside a process of another user that has synced FOLDER/file, and is
 * just executing something: what it has open of the served file is closed with that.
 * HOW "self": as "hold", and itself holds that lock from a line "lock" on, and answers no more.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ASK = 80, SYNCS = 20, PAGE = 4096 };

static void must(int is_done, const char *what)
{
    if (!is_done) {
        perror(what);
        exit(1);
    }
}

static void reply(int fd, const struct fuse_in_header *to, int error, void *body, size_t size)
{
    struct fuse_out_header head = {sizeof head + size, error, to->unique};
    struct iovec parts[] = {{&head, sizeof head}, {body, size}};
    (void)!writev(fd, parts, size ? 2 : 1);
}

/* What is to be written is told to TOLD. */
static void serve(int fd, int told)
{
    static char in[1 << 20], zeros[1 << 17];
    const struct fuse_in_header *head = (void *)in;
    struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 4096};
    struct fuse_open_out open = {.fh = 1};

    while (read(fd, in, sizeof in) > 0) {
        struct fuse_attr_out attr = {.attr_valid = 3600};
        attr.attr = (struct fuse_attr){.ino = head->nodeid, .nlink = 1, .blksize = 4096};
        attr.attr.mode = head->nodeid == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
        attr.attr.size = PAGE;
        struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 3600, .attr_valid = 3600};
        entry.attr = (struct fuse_attr){.ino = 2, .mode = S_IFREG | 0644, .nlink = 1};
        entry.attr.size = PAGE;
        const struct fuse_read_in *asked = (void *)(head + 1);

        switch (head->opcode) {
        case FUSE_INIT: reply(fd, head, 0, &init, sizeof init); break;
        case FUSE_LOOKUP: reply(fd, head, 0, &entry, sizeof entry); break;
        case FUSE_GETATTR: reply(fd, head, 0, &attr, sizeof attr); break;
        case FUSE_OPEN: reply(fd, head, 0, &open, sizeof open); break;
        case FUSE_READ: reply(fd, head, 0, zeros, asked->size); break;
        case FUSE_WRITE: (void)!write(told, "w", 1); break;
        case FUSE_FLUSH: case FUSE_FORGET: case FUSE_RELEASE: case FUSE_INTERRUPT: break;
        default: reply(fd, head, -38 /* ENOSYS */, NULL, 0);
        }
    }
}

/* Says to TOLD that it has begun: from then on it needs no page of memory that is not there. */
static void *sync_for_ever(void *told)
{
    int file = open("file", O_RDWR | O_CREAT, 0644);

    for (int round = 0;; round++, usleep(1000)) {
        must(fsync(file) == 0, "fsync");
        if (round == 99)
            (void)!write(*(int *)told, "b", 1);
    }
    return NULL;
}

/* Goes on syncing while it holds the lock of its memory. */
static void hold_lock(int served)
{
    char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, served, 0);
    pthread_t thread;
    int begun[2];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(map != MAP_FAILED, "mmap");
    must(pipe(begun) == 0, "pipe");
    must(pthread_create(&thread, NULL, sync_for_ever, &begun[1]) == 0, "a thread");
    must(read(begun[0], &thread, 1) == 1, "pipe");
    /* Just now: a sync() of somebody else would have it written before the lock is held. */
    map[0] = 1;
    /* What lies in its place waits for what is written of it. */
    mmap(map, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

enum { NOBODY = 65534, SERVED = 10, FILE_OF_ALL, TOLD };

/* Becomes somebody else, who has been executed as such: see `execute`. */
static void become_nobody(int served, int file, int told)
{
    must(dup2(served, SERVED) > 0 && dup2(file, FILE_OF_ALL) > 0 && dup2(told, TOLD) > 0, "dup2");
    must(setresgid(NOBODY, NOBODY, NOBODY) == 0, "setresgid");
    must(setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid");
    execl("/proc/self/exe", "closing", "/", "nobody", NULL);
    _exit(1);
}

static void execute(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int round = 0; round < 100; round++, usleep(1000))
        must(fsync(FILE_OF_ALL) == 0, "fsync");
    must(fcntl(SERVED, F_SETFD, FD_CLOEXEC) == 0, "fcntl");
    (void)!write(TOLD, "b", 1);
    execl("/bin/true", "true", NULL);
    _exit(1);
}

static void do_what_is_said(int served)
{
    char line[256];

    for (puts("ready"), fflush(stdout); fgets(line, sizeof line, stdin);) {
        if (strcmp(line, "lock\n") == 0)
            hold_lock(served);
        int synced = open("file", O_WRONLY | O_SYNC | O_CLOEXEC);
        must(write(synced, "a", 1) == 1 && fsync(synced) == 0 && close(synced) == 0, "write");
        puts("sync 0");
        fflush(stdout);
    }
}

/* A flag that there is not: no file takes it. */
static long ask_range(int file)
{
    return syscall(SYS_sync_file_range, file, 0L, 1L, 0x81);
}

/* Its lock is free once nobody has it open. */
static void is_closed(void)
{
    int locked = open("locked", O_RDWR | O_CREAT, 0644), tries = 0;

    must(locked >= 0 && flock(locked, LOCK_EX) == 0, "flock");
    must(ask_range(locked) == -1, "a range");
    close(locked);
    locked = open("locked", O_RDWR);
    while (flock(locked, LOCK_EX | LOCK_NB) != 0)
        must(tries++ < 20000 && usleep(1000) == 0, "a lock of what is closed");
    close(locked);
}

static void ask_about(int served, int is_range, int file)
{
    pid_t askers[ASK];
    time_t until = time(NULL) + 2;

    /* What is asked before the ledger has the file system is real. */
    while (time(NULL) < until)
        must(pwrite(file, "a", 1, 0) == 1 && fsync(file) == 0, "fsync");
    for (int asked = 0; asked < ASK; asked++) {
        askers[asked] = fork();
        if (askers[asked] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (is_range)
                ask_range(served);
            else
                fsync(served);
            pause();
        }
        for (int i = 0; i < SYNCS; i++)
            must(fsync(file) == 0, "fsync");
    }
    is_closed();
    puts("done");
    fflush(stdout);
    for (int asked = 0; asked < ASK; asked++)
        kill(askers[asked], SIGKILL);
}

int main(int argc, char **argv)
{
    if (argc != 3 || chdir(argv[1]) != 0)
        return 2;
    const char *how = argv[2];

    if (strcmp(how, "nobody") == 0)
        execute();
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), pipes[2];
    char options[64];

    must(fuse >= 0, "/dev/fuse");
    must(mkdir("served", 0755) == 0, "mkdir");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    must(mount("closing", "served", "fuse.closing", 0, options) == 0, "mount");
    must(pipe(pipes) == 0, "pipe");
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(fuse, pipes[1]);
        _exit(0);
    }
    close(fuse);
    int served = open("served/file", O_RDWR);
    int file = open("file", O_RDWR | O_CREAT, 0644);
    must(served >= 0 && file >= 0, "open");
    if (strcmp(how, "lock") == 0) {
        if (fork() == 0) {
            hold_lock(served);
            _exit(1);
        }
        must(read(pipes[0], options, 1) == 1, "pipe");
        do_what_is_said(served);
    } else if (strcmp(how, "execute") == 0) {
        if (fork() == 0)
            become_nobody(served, file, pipes[1]);
        must(read(pipes[0], options, 1) == 1, "pipe");
        do_what_is_said(served);
    } else if (strcmp(how, "hold") == 0 || strcmp(how, "self") == 0) {
        do_what_is_said(served);
    } else {
        ask_about(served, strcmp(how, "range") == 0, file);
    }
    umount2("served", MNT_DETACH);
    /* Nobody waits for a server that is gone. */
    kill(server, SIGKILL);
    while (wait(NULL) > 0)
        ;
    return 0;
}
