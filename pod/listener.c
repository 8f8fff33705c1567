/*
 * listener --reply FD --type stream|seqpacket --mode OCTAL [--backlog N] [--directory PATH] [--deleted] [--nonblock] -- NAME: makes a unix
 * socket anew, with the rights of who runs it (the job's user, by enter), and sends it to FD. CRIU would make it as root, at a path that
 * the user may have changed since.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "line.h"
#include "message.h"
#include "number.h"
#include "reason.h"
#include "signals.h"

#define USAGE \
	"listener --reply FD --type stream|seqpacket --mode OCTAL [--backlog N] [--directory PATH] [--deleted] [--nonblock] -- NAME"

struct options {
	int reply;
	int type;
	mode_t mode;
	bool listens, deleted, nonblock;
	int backlog;
	const char *directory;
	struct sockaddr_un address;
	socklen_t address_size;
};

static int parse_name(const char *name, struct options *options, struct reason *reason)
{
	size_t size = strlen(name);

	if (size == 0 || size > sizeof(options->address.sun_path))
		return refuse(reason, "%.120s is no name of a unix socket", name);
	options->address.sun_family = AF_UNIX;
	/* a name may fill it, without an end */
	memcpy(options->address.sun_path, name, size);
	options->address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
	return 0;
}

static int parse_options(int argc, char **argv, struct options *options, struct reason *reason)
{
	static const struct option known[] = {
		{"reply", required_argument, NULL, 'r'},     {"type", required_argument, NULL, 't'},
		{"mode", required_argument, NULL, 'm'},	     {"backlog", required_argument, NULL, 'b'},
		{"directory", required_argument, NULL, 'd'}, {"deleted", no_argument, NULL, 'x'},
		{"nonblock", no_argument, NULL, 'n'},	     {0},
	};
	uint64_t reply = 0, mode = 0, backlog = 0;
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "+", known, NULL)) != -1) {
		bool good = option != '?';

		if (option == 'r')
			good = parse_number(optarg, 10, INT_MAX, &reply);
		if (option == 't') {
			options->type = !strcmp(optarg, "stream") ? SOCK_STREAM : !strcmp(optarg, "seqpacket") ? SOCK_SEQPACKET : 0;
			good = options->type != 0;
		}
		if (option == 'm')
			good = parse_number(optarg, 8, 07777, &mode);
		if (option == 'b')
			good = options->listens = parse_number(optarg, 10, INT_MAX, &backlog);
		if (option == 'd')
			options->directory = optarg;
		options->deleted |= option == 'x';
		options->nonblock |= option == 'n';
		if (!good)
			return refuse(reason, "usage: " USAGE);
	}
	if (reply < 3 || !options->type || optind != argc - 1)
		return refuse(reason, "usage: " USAGE);
	options->reply = (int)reply;
	options->mode = (mode_t)mode;
	options->backlog = (int)backlog;
	return parse_name(argv[optind], options, reason);
}

/* Directories that this node does not have, such as the program's own in /tmp. */
static int make_directories(const char *path, struct reason *reason)
{
	char part[PATH_MAX];

	for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		if ((size_t)(slash - path) >= sizeof(part))
			return refuse(reason, "%.120s...: %s", path, strerror(ENAMETOOLONG));
		memcpy(part, path, (size_t)(slash - path));
		part[slash - path] = '\0';
		if (mkdir(part, 0700) && errno != EEXIST)
			return refuse(reason, "cannot make the directory %.200s: %s", part, strerror(errno));
	}
	return 0;
}

static int enter_directory(const char *directory, struct reason *reason)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/", directory);
	if (make_directories(path, reason))
		return -1;
	return chdir(directory) ? refuse(reason, "cannot enter %.200s: %s", directory, strerror(errno)) : 0;
}

/* The socket that was there before; anything else stays, and is in the way. */
static int clear(const struct options *options, const char *name, struct reason *reason)
{
	struct stat status;

	if (lstat(name, &status))
		return errno == ENOENT ? 0 : refuse(reason, "%.120s: %s", name, strerror(errno));
	if (options->deleted || !S_ISSOCK(status.st_mode))
		return refuse(reason, "something else is at the place of the unix socket %.120s now", name);
	return unlink(name) ? refuse(reason, "cannot remove the old unix socket %.120s: %s", name, strerror(errno)) : 0;
}

static int make(const struct options *options, int fd, const char *name, struct reason *reason)
{
	if (fd < 0)
		return refuse(reason, "cannot make a unix socket: %s", strerror(errno));
	if (options->directory && enter_directory(options->directory, reason))
		return -1;
	if (make_directories(name, reason) || clear(options, name, reason))
		return -1;
	umask(0777 & ~options->mode);
	if (bind(fd, (const struct sockaddr *)&options->address, options->address_size))
		return refuse(reason, "cannot bind the unix socket %.120s: %s", name, strerror(errno));
	/* not by the umask: it cannot give the bits that bind() leaves out */
	if (!options->deleted && chmod(name, options->mode))
		return refuse(reason, "cannot set the mode of %.120s: %s", name, strerror(errno));
	if (options->deleted && unlink(name))
		return refuse(reason, "cannot remove %.120s: %s", name, strerror(errno));
	if (options->listens && listen(fd, options->backlog))
		return refuse(reason, "cannot listen at %.120s: %s", name, strerror(errno));
	return options->nonblock && fcntl(fd, F_SETFL, O_NONBLOCK) ? refuse(reason, "%.120s: %s", name, strerror(errno)) : 0;
}

/* Takes fd. */
static int reply(int socket, int fd, struct reason *reason)
{
	struct message answer;
	int result = 0;

	message_start(&answer, "SOCKET");
	message_add_fd(&answer, fd);
	if (message_send(socket, &answer, 0))
		result = refuse(reason, "cannot answer: %s", strerror(errno));
	message_free(&answer);
	return result;
}

int main(int argc, char **argv)
{
	struct options options = {0};
	struct reason reason;
	int fd = -1, result = 0;

	signals_set_mask(SIGNALS_ALL);
	result = parse_options(argc, argv, &options, &reason);
	if (!result) {
		fd = socket(AF_UNIX, options.type | SOCK_CLOEXEC, 0);
		result = make(&options, fd, argv[argc - 1], &reason);
	}
	if (!result)
		result = reply(options.reply, fd, &reason);
	else if (fd >= 0)
		close(fd);
	if (result)
		print_format(STDERR_FILENO, "%s", reason.text);
	return result ? 1 : 0;
}
