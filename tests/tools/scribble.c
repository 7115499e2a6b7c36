/* Writes nonsense over what a session shares with its processes, while a child makes syncs:
 *
 *   scribble own DIR N    over this process's ring and slot, and over rings that nobody has
 *   scribble all DIR N    over everything that can be written
 *
 * until the child has made N. Ends with status 7; 99 where the child failed, 98 where there is no
 * session that records.
 */
#include "watch/rings.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t random_number(void)
{
	static uint64_t x = 88172645463325252ull;

	x ^= x << 13;
	x ^= x >> 7;
	return x ^= x << 17;
}

/* A number as hostile as any: small, near a limit, or any. */
static uint64_t nonsense(void)
{
	static const uint64_t limits[] = { 0, 1, UINT64_MAX, UINT32_MAX, 1ull << 63, 1ull << 31 };

	switch (random_number() % 3) {
	case 0:
		return limits[random_number() % 6];
	case 1:
		return random_number() % 70000;
	default:
		return random_number();
	}
}

static void scribble(void *from, size_t size)
{
	uint64_t *word = from;

	for (size_t i = 0; i < size / 8; i++)
		__atomic_store_n(&word[i], nonsense(), __ATOMIC_RELAXED);
}

static void *mapped(const char *page, const char *name, size_t *size)
{
	char path[4096];
	struct stat s;
	void *p;
	int fd;

	snprintf(path, sizeof path, "%.*s/%s", (int)(strrchr(page, '/') - page), page, name);
	fd = open(path, O_RDWR);
	if (fd < 0 || fstat(fd, &s))
		exit(98);
	*size = (size_t)s.st_size;
	p = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		exit(98);
	close(fd);
	return p;
}

static int syncs(const char *name, int n)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	for (; n > 0; n--)
		if (pwrite(fd, "a", 1, 0) != 1 || fsync(fd) || usleep(500))
			return 99;
	return 0;
}

/* Over what is ours, and over rings that nobody has. */
static void scribble_own(struct sl_rings *r, char *cells, size_t ring, struct sl_slots *s)
{
	uint32_t pid = (uint32_t)getpid();

	for (unsigned k = 0; k < 16; k++) {
		struct sl_ring *t = &r->ring[k];

		if (__atomic_load_n(&t->pid, __ATOMIC_SEQ_CST) != pid && k < 8)
			continue;
		for (unsigned i = 0; i < 64; i++) {
			size_t at = random_number() % (ring / 64);

			scribble(cells + k * ring + at * 64, 64);
		}
		/* A cell that looks as if it was written, with any count. */
		scribble(cells + k * ring + (t->tail % (ring / 64)) * 64, 64);
		*(uint32_t *)(cells + k * ring + (t->tail % (ring / 64)) * 64) =
			SL_CELL_STATE(random_number() % 7, random_number(), t->tail);
		t->head = random_number() % 4 ? t->tail + random_number() % 300 : nonsense();
		t->lost = random_number() % 100;
	}
	for (unsigned k = 1; k < SL_SLOT_MAX; k++)
		if (__atomic_load_n(&s->slot[k].pid, __ATOMIC_SEQ_CST) == pid)
			scribble(&s->slot[k].ask_dev, sizeof s->slot[k] - 16);
}

int main(int count, char **arguments)
{
	const char *page = getenv("SYNCLATER_PAGE");
	size_t rings_size, slots_size, ring;
	struct sl_rings *rings;
	struct sl_slots *slots;
	int status = 0;
	pid_t child;

	if (count < 4 || !page || chdir(arguments[2]))
		return 98;
	rings = mapped(page, "rings", &rings_size);
	slots = mapped(page, "slots", &slots_size);
	ring = (rings_size - SL_RINGS_DATA) / SL_RING_MAX;
	if (syncs("own", 3))
		return 99;
	child = fork();
	if (!child)
		_exit(syncs("honest", atoi(arguments[3])));
	while (!waitpid(child, &status, WNOHANG)) {
		if (!strcmp(arguments[1], "own"))
			scribble_own(rings, (char *)rings + SL_RINGS_DATA, ring, slots);
		else if (random_number() % 2)
			scribble(rings, SL_RINGS_DATA + 20 * ring);
		else
			scribble(slots, slots_size);
	}
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 7 : 99;
}
