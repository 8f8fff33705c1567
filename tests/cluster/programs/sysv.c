/*
 * sysv: System V objects of every kind. At the end it takes the messages out, and lets go of the segment that is marked for removal.
 */
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "look.h"

enum { PLAIN, REMOVED, UNATTACHED, KEYED, COUNT };
static const char *const NAMES[] = {"plain", "removed", "unattached", "keyed"};
static int shm_ids[COUNT], sem_id, msg_id;
static unsigned *attached[COUNT];

struct letter {
	long type;
	char text[8192];
};

static void fill(unsigned *words, size_t count, unsigned seed)
{
	for (size_t i = 0; i < count; i++)
		words[i] = seed = seed * 1664525u + 1013904223u;
}

static unsigned sum(const unsigned *words, size_t count)
{
	unsigned total = 0;

	for (size_t i = 0; i < count; i++)
		total = total * 31 + words[i];
	return total;
}

static const size_t WORDS = 300 * 1024 / sizeof(unsigned);

static void make_all(void)
{
	struct letter letter = {.type = 7};

	for (int i = 0; i < COUNT; i++) {
		shm_ids[i] = shmget(i == KEYED ? 0x5151 : IPC_PRIVATE, WORDS * sizeof(unsigned), IPC_CREAT | 0640);
		if (shm_ids[i] < 0)
			fail("shmget");
		attached[i] = shmat(shm_ids[i], NULL, 0);
		if (attached[i] == (void *)-1)
			fail("shmat");
		fill(attached[i], WORDS, (unsigned)i + 1);
	}
	if (shmctl(shm_ids[REMOVED], IPC_RMID, NULL) || shmdt(attached[UNATTACHED]))
		fail("shm");
	sem_id = semget(0x5252, 3, IPC_CREAT | 0600);
	if (sem_id < 0 || semctl(sem_id, 0, SETVAL, 5) || semctl(sem_id, 2, SETVAL, 32767))
		fail("sem");
	struct sembuf take = {.sem_num = 0, .sem_op = -2};
	if (semop(sem_id, &take, 1))
		fail("semop");
	msg_id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
	if (msg_id < 0)
		fail("msgget");
	for (int i = 0; i < 3; i++) {
		memset(letter.text, 'a' + i, sizeof(letter.text));
		letter.type = 3 - i;
		if (msgsnd(msg_id, &letter, i == 1 ? sizeof(letter.text) : (size_t)i * 10, IPC_NOWAIT))
			fail("msgsnd");
	}
}

static void tell(void)
{
	struct shmid_ds segment;
	struct semid_ds set;
	struct msqid_ds queue;

	for (int i = 0; i < COUNT; i++) {
		const unsigned *words = attached[i];

		if (i == UNATTACHED)
			words = shmat(shm_ids[i], NULL, SHM_RDONLY);
		if (words == (void *)-1 || shmctl(shm_ids[i], IPC_STAT, &segment))
			fail("look at shm");
		printf("shm.%s id=%d size=%zu mode=%o uid=%d nattch=%lu sum=%08x\n", NAMES[i], shm_ids[i], segment.shm_segsz,
		       segment.shm_perm.mode, (int)segment.shm_perm.uid == (int)getuid(), segment.shm_nattch, sum(words, WORDS));
		if (i == UNATTACHED)
			shmdt(words);
	}
	printf("shm.key finds %d\n", shmget(0x5151, 0, 0) == shm_ids[KEYED]);
	if (semctl(sem_id, 0, IPC_STAT, &set))
		fail("look at sem");
	printf("sem id=%d found=%d mode=%o values=%d,%d,%d used=%d\n", sem_id, semget(0x5252, 0, 0) == sem_id, set.sem_perm.mode,
	       semctl(sem_id, 0, GETVAL), semctl(sem_id, 1, GETVAL), semctl(sem_id, 2, GETVAL), set.sem_otime != 0);
	if (msgctl(msg_id, IPC_STAT, &queue))
		fail("look at msg");
	printf("msg id=%d mode=%o bytes=%lu messages=%lu\n", msg_id, queue.msg_perm.mode, queue.msg_cbytes, queue.msg_qnum);
}

static void take_messages(void)
{
	struct letter letter;
	ssize_t length;

	while ((length = msgrcv(msg_id, &letter, sizeof(letter.text), 0, IPC_NOWAIT)) >= 0)
		printf("message type=%ld length=%zd first=%c\n", letter.type, length, length ? letter.text[0] : '-');
	printf("errno %d\n", errno == ENOMSG);
	shmdt(attached[REMOVED]);
	printf("removed is gone %d\n", shmat(shm_ids[REMOVED], NULL, 0) == (void *)-1 && (errno == EINVAL || errno == EIDRM));
}

int main(void)
{
	make_all();
	look_loop(tell);
	take_messages();
	puts("done");
	return 0;
}
