/*
 * Tests of the parts that read foreign bytes, built with address and undefined-behaviour sanitizers.
 * Without arguments: the fixed cases. "check payload" and "check message": parse standard input, say "good" or the reason; for fuzzing.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "descriptors.h"
#include "end.h"
#include "line.h"
#include "message.h"
#include "number.h"
#include "payload.h"
#include "signals.h"

static int failures;

void check(bool holds, const char *condition, const char *file, int line)
{
	if (!holds) {
		fprintf(stderr, "%s:%d: %s\n", file, line, condition);
		failures++;
	}
}

static void check_numbers(void)
{
	uint64_t value = 7;
	const char *list = "1,22,333", *bad = "1,", *worse = ",1", *huge = "4294967296";

	CHECK(parse_number("0", 10, 0, &value) && value == 0);
	CHECK(parse_number("18446744073709551615", 10, UINT64_MAX, &value) && value == UINT64_MAX);
	CHECK(!parse_number("18446744073709551616", 10, UINT64_MAX, &value));
	CHECK(parse_number("64", 10, 64, &value) && value == 64);
	CHECK(!parse_number("65", 10, 64, &value));
	CHECK(parse_number("7fF", 16, UINT64_MAX, &value) && value == 0x7ff);
	CHECK(parse_number("022", 8, 0777, &value) && value == 022);
	CHECK(!parse_number("8", 8, 0777, &value));
	CHECK(!parse_number("", 10, 10, &value));
	CHECK(!parse_number(NULL, 10, 10, &value));
	CHECK(!parse_number("-1", 10, 10, &value));
	CHECK(!parse_number("+1", 10, 10, &value));
	CHECK(!parse_number(" 1", 10, 10, &value));
	CHECK(!parse_number("1 ", 10, 10, &value));
	CHECK(parse_list_item(&list, ',', 400, &value) && value == 1);
	CHECK(parse_list_item(&list, ',', 400, &value) && value == 22);
	CHECK(parse_list_item(&list, ',', 400, &value) && value == 333 && *list == '\0');
	CHECK(!parse_list_item(&bad, ',', 400, &value));
	CHECK(!parse_list_item(&worse, ',', 400, &value));
	CHECK(!parse_list_item(&huge, ',', UINT32_MAX, &value));
}

static void check_message(void)
{
	struct message sent, got;
	int pair[2], ends[2];
	uint64_t number;
	const char *file;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	CHECK(!pipe(ends));
	message_start(&sent, "TASK");
	message_add(&sent, "index", "%d", 3);
	message_add(&sent, "cgroup", "/a=b");
	message_add(&sent, "cgroup", "%s", "");
	message_add_fd(&sent, ends[0]);
	message_add_fd(&sent, ends[1]);
	CHECK(!message_send(pair[0], &sent, 0));
	message_free(&sent);
	CHECK(message_receive(pair[1], &got, true, 0) == MESSAGE_GOT);
	CHECK(message_is(&got, "TASK") && !message_is(&got, "TAS"));
	CHECK(message_number(&got, "index", 3, &number) && number == 3);
	CHECK(!message_number(&got, "index", 2, &number));
	CHECK(!message_number(&got, "cgroup", 2, &number));
	CHECK(!message_value(&got, "ind") && !message_value(&got, "TASK"));
	file = message_next_value(&got, "cgroup", NULL);
	CHECK(file && !strcmp(file, "/a=b"));
	file = message_next_value(&got, "cgroup", file);
	CHECK(file && !strcmp(file, ""));
	CHECK(!message_next_value(&got, "cgroup", file));
	CHECK(got.fd_count == 2 && (fcntl(got.fds[0], F_GETFD) & FD_CLOEXEC));
	ends[0] = message_take_fd(&got, 0);
	CHECK(ends[0] >= 0 && message_take_fd(&got, 0) == -1 && message_take_fd(&got, 2) == -1);
	ends[1] = got.fds[1];
	message_free(&got);
	CHECK(fcntl(ends[1], F_GETFD) < 0 && fcntl(ends[0], F_GETFD) >= 0);
	close(ends[0]);

	/* what does not fit is not sent, and one that fits exactly is */
	message_start(&sent, "X");
	message_add(&sent, "k", "%*s", MESSAGE_MAX_BYTES, "");
	CHECK(message_send(pair[0], &sent, 0) == -1 && errno == EMSGSIZE);
	message_free(&sent);
	message_start(&sent, "X");
	message_add(&sent, "k", "%*s", MESSAGE_MAX_BYTES - 5, "");
	CHECK(!message_send(pair[0], &sent, 0));
	message_free(&sent);
	CHECK(message_receive(pair[1], &got, true, 0) == MESSAGE_GOT && got.size == MESSAGE_MAX_BYTES);
	message_free(&got);
	CHECK(message_receive(pair[1], &got, true, MSG_DONTWAIT) == MESSAGE_FAILED && errno == EAGAIN);
	message_free(&got);

	/* a peer that leaves without having read all: what it had sent must still arrive */
	CHECK(send(pair[1], "A", 2, 0) == 2 && send(pair[0], "B", 2, 0) == 2);
	close(pair[0]);
	CHECK(message_receive(pair[1], &got, false, 0) == MESSAGE_GOT && message_is(&got, "B"));
	message_free(&got);
	CHECK(message_receive(pair[1], &got, false, 0) == MESSAGE_END);
	message_free(&got);
	close(pair[1]);
}

static void check_form(void)
{
	CHECK(message_is_well_formed("GO", 3));
	CHECK(message_is_well_formed("GO\0a=", 6));
	CHECK(!message_is_well_formed("GO", 2));
	CHECK(!message_is_well_formed("", 1));
	CHECK(!message_is_well_formed("\0a=b", 5));
	CHECK(!message_is_well_formed("GO\0a", 5));
	CHECK(!message_is_well_formed("GO\0=a", 6));
	CHECK(!message_is_well_formed("GO\0", 4));
	CHECK(!message_is_well_formed(NULL, 0));
}

static void check_payload(void)
{
	char *argv[] = {"prog", "", "a\nb", NULL}, *envp[] = {"A=1", "EMPTY=", "odd", NULL};
	int fds[] = {0, 1, 2, 77};
	struct payload_source source = {
		.argv = argv, .envp = envp, .fds = fds, .fd_count = 4, .ignored = signal_bit(SIGPIPE), .blocked = signal_bit(64)};
	struct payload payload = {0};
	struct reason reason = {0};
	struct rlimit limit;
	char cwd[4096];
	int fd = payload_write(&source, &reason);

	CHECK(fd >= 3);
	CHECK(write(fd, "x", 1) < 0 && errno == EPERM);
	CHECK(ftruncate(fd, 0) < 0 && errno == EPERM);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK(!payload_read(fd, &payload, &reason));
	CHECK(!strcmp(payload.argv[0], "prog") && !strcmp(payload.argv[1], "") && !strcmp(payload.argv[2], "a\nb") && !payload.argv[3]);
	CHECK(!strcmp(payload.envp[0], "A=1") && !strcmp(payload.envp[1], "EMPTY=") && !strcmp(payload.envp[2], "odd") && !payload.envp[3]);
	CHECK(payload.fd_count == 4 && payload.fds[3] == 77);
	CHECK(payload.ignored == signal_bit(SIGPIPE) && payload.blocked == signal_bit(64));
	CHECK(getcwd(cwd, sizeof(cwd)) && !strcmp(cwd, payload.cwd));
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && payload.has_limit[RLIMIT_NOFILE]);
	CHECK(payload.limits[RLIMIT_NOFILE].rlim_cur == limit.rlim_cur && payload.limits[RLIMIT_NOFILE].rlim_max == limit.rlim_max);
	CHECK(payload.affinity_size > 0 && payload.has_nice);
	payload_free(&payload);
	close(fd);
}

static void check_place(void)
{
	/* a cycle, a chain and a far one: 10<-11<-12<-10, 20<-10, 300<-12 */
	static const int targets[] = {10, 11, 12, 20, 300};
	int sources[5], pipes[3][2];
	struct reason reason;
	pid_t child = fork();
	int status = 0;

	if (child == 0) {
		char got = 0;

		for (int i = 0; i < 3; i++) {
			if (pipe(pipes[i]) || dup2(pipes[i][1], 10 + i) < 0)
				_exit(10);
			/* the read ends become the last sources' neighbours, so that the loop below can look at what arrives */
			fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
		}
		sources[0] = 11, sources[1] = 12, sources[2] = 10, sources[3] = 10, sources[4] = pipes[2][0];
		if (descriptors_place(sources, targets, 5, &reason))
			_exit(11);
		if (fcntl(pipes[0][0], F_GETFD) >= 0 || fcntl(13, F_GETFD) >= 0 || (fcntl(10, F_GETFD) & FD_CLOEXEC))
			_exit(12);
		/* number 11 is what was 12, whose read end is now 300 */
		if (write(11, "c", 1) != 1 || read(300, &got, 1) != 1 || got != 'c')
			_exit(13);
		_exit(0);
	}
	waitpid(child, &status, 0);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void check_line(void)
{
	char got[64] = "";
	int ends[2];

	CHECK(!pipe(ends));
	print_line(ends[1], "a\nb\x1b[31m\x7f\xc2\x9b \xc3\xa4");
	CHECK(read(ends[0], got, sizeof(got) - 1) > 0 && !strcmp(got, "a?b?[31m?? \xc3\xa4\n"));
	close(ends[0]);
	print_line(ends[1], "nobody reads this");
	CHECK(!signals_pending(SIGPIPE));
	close(ends[1]);
	print_line(ends[1], "closed");
	print_line(-1, "none");
}

static void check_end_status(void)
{
	CHECK(is_end_status(0) && is_end_status(255 << 8) && is_end_status(SIGKILL) && is_end_status(SIGSEGV | 0x80) && is_end_status(64));
	CHECK(!is_end_status(0x7f) && !is_end_status(0xffff) && !is_end_status(0x10000) && !is_end_status(-1) && !is_end_status(65));
	CHECK(!is_end_status(SIGTERM | 0x100));
}

static char *read_input(size_t *size)
{
	char *bytes = malloc(PAYLOAD_MAX_BYTES + 1);

	*size = bytes ? fread(bytes, 1, PAYLOAD_MAX_BYTES + 1, stdin) : 0;
	return bytes;
}

static int parse_input(const char *what)
{
	struct payload payload;
	struct reason reason = {"good"};
	size_t size;
	char *bytes = read_input(&size), *exact = malloc(size ? size : 1);

	/* of exactly this size, so that the sanitizer sees one byte too far */
	memcpy(exact, bytes, size);
	free(bytes);
	if (!strcmp(what, "payload")) {
		payload_parse(exact, size, &payload, &reason);
		payload_free(&payload);
	} else {
		if (!message_is_well_formed(exact, size))
			refuse(&reason, "malformed");
		free(exact);
	}
	puts(reason.text);
	return 0;
}

int main(int argc, char **argv)
{
	signals_set_mask(signal_bit(SIGPIPE));
	if (argc == 2)
		return parse_input(argv[1]);
	check_numbers();
	check_message();
	check_form();
	check_payload();
	check_place();
	check_line();
	check_held();
	check_relays();
	check_relay_without_reader();
	check_forward();
	check_end_status();
	if (failures == 0)
		puts("all good");
	return failures != 0;
}
