/*
 * posix [NAME]: POSIX shared memory and semaphores, named and unlinked, memfds, a sparse segment, and locks in all of them that parent and child
 * pass to and fro. NAME makes the names in /dev/shm its own.
 */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "look.h"

enum { SIZE = 100000, SPARSE = 1 << 30 };

struct shared {
	sem_t question, answer, end;
	pthread_mutex_t robust;
	unsigned char bytes[SIZE];
};

enum { NAMED, UNLINKED, MAPPED_ONLY, ANONYMOUS, MEMFD, SEALED, COUNT };
static const char *const KINDS[] = {"named", "unlinked", "mapped only", "anonymous", "memfd", "sealed"};
static struct shared *blocks[COUNT];
static int fds[COUNT];
static sem_t *named, *unlinked;
static unsigned char *sparse;
enum { SEMAPHORE = MAPPED_ONLY + 1, GONE, HOLES, NAMES };
static const char *const SUFFIXES[] = {"named", "unlinked", "mapped", "semaphore", "gone", "holes"};
static char names[NAMES][64];

static void *map(int fd, size_t size)
{
	void *place = mmap(NULL, size, PROT_READ | PROT_WRITE, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

	if (place == MAP_FAILED)
		fail("mmap");
	return place;
}

static int segment(const char *name, off_t size)
{
	int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);

	if (fd < 0 || ftruncate(fd, size))
		fail(name);
	return fd;
}

static void make_block(int kind)
{
	pthread_mutexattr_t attributes;

	if (kind <= MAPPED_ONLY)
		fds[kind] = segment(names[kind], sizeof(struct shared));
	else
		fds[kind] = kind == ANONYMOUS ? -1 : memfd_create("block", MFD_ALLOW_SEALING);
	if (kind >= MEMFD && ftruncate(fds[kind], sizeof(struct shared)))
		fail("memfd");
	blocks[kind] = map(fds[kind], sizeof(struct shared));
	if ((kind == UNLINKED || kind == MAPPED_ONLY) && shm_unlink(names[kind]))
		fail("shm_unlink");
	if (kind == MAPPED_ONLY)
		close(fds[kind]);
	if (kind == SEALED && fcntl(fds[kind], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		fail("F_ADD_SEALS");
	for (int i = 0; i < SIZE; i++)
		blocks[kind]->bytes[i] = (unsigned char)(i * 7 + kind);
	sem_init(&blocks[kind]->question, 1, 0);
	sem_init(&blocks[kind]->end, 1, 0);
	sem_init(&blocks[kind]->answer, 1, 0);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&blocks[kind]->robust, &attributes);
}

/* The child answers in the block in which it was asked. */
static void *serve(void *argument)
{
	struct shared *block = argument;

	pthread_mutex_lock(&block->robust);
	for (;;) {
		while (sem_wait(&block->question))
			;
		block->bytes[0]++;
		sem_post(&block->answer);
	}
	return NULL;
}

static void start_child(void)
{
	pthread_t thread;

	if (fork())
		return;
	for (int kind = 0; kind < COUNT; kind++)
		pthread_create(&thread, NULL, serve, blocks[kind]);
	sem_post(unlinked);
	while (sem_wait(&blocks[NAMED]->end))
		;
	_exit(0);
}

static unsigned sum(const unsigned char *bytes, size_t count)
{
	unsigned total = 0;

	for (size_t i = 0; i < count; i++)
		total = total * 31 + bytes[i];
	return total;
}

static void tell(void)
{
	struct stat status;
	sem_t *again;
	int value;

	for (int kind = 0; kind < COUNT; kind++) {
		unsigned char before = blocks[kind]->bytes[0];

		sem_post(&blocks[kind]->question);
		while (sem_wait(&blocks[kind]->answer))
			;
		printf("%s sum=%08x answered=%d held=%d", KINDS[kind], sum(blocks[kind]->bytes + 1, SIZE - 1),
		       (unsigned char)(blocks[kind]->bytes[0] - before), pthread_mutex_trylock(&blocks[kind]->robust));
		if (kind != ANONYMOUS && kind != MAPPED_ONLY && !fstat(fds[kind], &status))
			printf(" links=%d size=%ld seals=%d", (int)status.st_nlink, (long)status.st_size, fcntl(fds[kind], F_GET_SEALS));
		puts("");
	}
	sem_getvalue(named, &value);
	again = sem_open(names[SEMAPHORE], 0);
	sem_post(again);
	printf("named semaphore %d, opened again it is the same %d\n", value, !sem_trywait(named));
	sem_getvalue(unlinked, &value);
	printf("unlinked semaphore %d\n", value);
	printf("sparse %d %d %d\n", sparse[0], sparse[SPARSE / 2], sparse[SPARSE - 1]);
}

int main(int argc, char **argv)
{
	const char *own = argc > 1 ? argv[1] : "posix";
	int fd, status;

	for (int i = 0; i < NAMES; i++)
		snprintf(names[i], sizeof(names[i]), "/%s-%s", own, SUFFIXES[i]);
	for (int kind = 0; kind < COUNT; kind++)
		make_block(kind);
	named = sem_open(names[SEMAPHORE], O_CREAT | O_EXCL, 0600, 0);
	unlinked = sem_open(names[GONE], O_CREAT | O_EXCL, 0600, 4);
	if (named == SEM_FAILED || unlinked == SEM_FAILED || sem_unlink(names[GONE]))
		fail("sem_open");
	fd = segment(names[HOLES], SPARSE);
	sparse = map(fd, SPARSE);
	sparse[0] = 1;
	sparse[SPARSE - 1] = 3;
	shm_unlink(names[HOLES]);
	start_child();
	while (sem_trywait(unlinked) || sem_trywait(unlinked))
		look_wait();
	look_loop(tell);
	sem_post(&blocks[NAMED]->end);
	wait(&status);
	/* the robust mutexes of the child that ended */
	for (int kind = 0; kind < COUNT; kind++)
		printf("%s owner died %d\n", KINDS[kind], pthread_mutex_lock(&blocks[kind]->robust) == EOWNERDEAD);
	shm_unlink(names[NAMED]);
	sem_unlink(names[SEMAPHORE]);
	return 0;
}
