/* 8 threads, 1,009 requests each, on one descriptor and on their own. */
#include "victim.h"

#include <pthread.h>

#define THREADS  8
#define REQUESTS 1009

static int shared;

struct tally {
	int number, right, wrong, touched;
};

static void *hammer(void *argument)
{
	struct tally *t = argument;
	char name[16];
	int own;

	snprintf(name, sizeof name, "own %d", t->number);
	own = must(open(name, O_CREAT | O_RDWR, 0600), name);
	for (int i = 0; i < REQUESTS; i++) {
		int result;

		errno = UNTOUCHED + t->number;
		result = i % 3 == 0 ? fsync(own) : i % 3 == 1 ? fdatasync(shared) : fsync(shared);
		t->right += result == 0;
		t->touched += errno != UNTOUCHED + t->number;
		t->wrong += i % 23 == 0 && (fsync(-1) != -1 || errno != EBADF);
	}
	close(own);
	return NULL;
}

int main(int count, char **arguments)
{
	static struct tally tally[THREADS];
	pthread_t thread[THREADS];

	begin(count, arguments);
	shared = make_file("file", O_RDWR);
	must(chdir(work), "chdir");
	for (int i = 0; i < THREADS; i++) {
		tally[i].number = i;
		must(-pthread_create(&thread[i], NULL, hammer, &tally[i]), "pthread_create");
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		printf("thread %d: %d good, %d wrongly answered, errno touched %d times\n", i,
		       tally[i].right, tally[i].wrong, tally[i].touched);
	}
	return 0;
}
