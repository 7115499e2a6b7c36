/* An O_SYNC descriptor through dup, fork, exec, SCM_RIGHTS, F_SETFL and F_SETSIG. */
#include "descriptor.h"

static void show_in_child(int fd)
{
	pid_t child = must(fork(), "fork");
	int status;

	if (child == 0) {
		look_at("in a child", fd);
		CALL("write", "in a child", write(fd, "c", 1));
		exit(0);
	}
	waitpid(child, &status, 0);
	printf("the child ended with %d\n", status);
	look_at("after the child", fd);
}

static int send_and_receive(int fd)
{
	union { struct cmsghdr head; char bytes[CMSG_SPACE(sizeof fd)]; } control = { 0 };
	struct iovec byte = { "x", 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof control };
	char got;
	int pair[2], received;

	must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	control.head.cmsg_level = SOL_SOCKET, control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	must((int)sendmsg(pair[0], &message, 0), "sendmsg");
	byte.iov_base = &got;
	must((int)recvmsg(pair[1], &message, 0), "recvmsg");
	memcpy(&received, CMSG_DATA(&control.head), sizeof received);
	close(pair[0]), close(pair[1]);
	return received;
}

static void duplicate(int fd)
{
	int copy = must(dup(fd), "dup"), other = must(dup2(fd, 200), "dup2");
	int third = must(fcntl(fd, F_DUPFD_CLOEXEC, 210), "F_DUPFD_CLOEXEC");
	int sent = send_and_receive(fd);

	look_at("dup", copy);
	look_at("dup2", other);
	look_at("F_DUPFD_CLOEXEC", third);
	look_at("SCM_RIGHTS", sent);
	CALL("write", "dup", write(copy, "d", 1));
	CALL("write", "SCM_RIGHTS", write(sent, "s", 1));
	look_at("the first, after writes to its copies", fd);
	close(copy), close(other), close(third), close(sent);
}

static void change_flags(int fd)
{
	CALL("F_SETFL", "O_NONBLOCK", fcntl(fd, F_SETFL, O_NONBLOCK));
	look_at("after O_NONBLOCK", fd);
	CALL("F_SETFL", "F_GETFL | O_APPEND", fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_APPEND));
	look_at("after O_APPEND", fd);
	CALL("F_SETFL", "0", fcntl(fd, F_SETFL, 0));
	look_at("after 0", fd);
	CALL("F_SETFL", "O_SYNC", fcntl(fd, F_SETFL, O_SYNC));
	look_at("after O_SYNC", fd);
}

/* F_GETFL is not asked from here on: a mark that the program overwrote cannot tell it any more. */
static void take_the_signal(int fd)
{
	CALL("F_SETSIG", "SIGUSR1", fcntl(fd, F_SETSIG_, SIGUSR1));
	printf("F_GETSIG is SIGUSR1: %d\n", fcntl(fd, F_GETSIG_) == SIGUSR1);
	CALL("write", "with a signal of its own", write(fd, "s", 1));
	CALL("F_SETSIG", "0", fcntl(fd, F_SETSIG_, 0));
	CALL("F_SETSIG", "-1", fcntl(fd, F_SETSIG_, -1));
	CALL("F_SETSIG", "1000", fcntl(fd, F_SETSIG_, 1000));
	printf("F_GETSIG after 0: %d\n", fcntl(fd, F_GETSIG_));
	CALL("F_SETSIG", "61", fcntl(fd, F_SETSIG_, 61));
	printf("F_GETSIG of 61: %d\n", fcntl(fd, F_GETSIG_));
	CALL("write", "with signal 61", write(fd, "s", 1));
}

static void run_a_copy(char **arguments, int fd, const char *role)
{
	char number[16];
	pid_t child = must(fork(), "fork");
	int status;

	if (child == 0) {
		snprintf(number, sizeof number, "%d", fd);
		execl(arguments[0], arguments[0], work, number, role, NULL);
		die("exec");
	}
	waitpid(child, &status, 0);
	printf("the copy ended with %d\n", status);
}

int main(int count, char **arguments)
{
	static const struct { const char *name; int flags; } how[] = {
		{ "O_SYNC", O_SYNC }, { "O_DSYNC", O_DSYNC }, { "no sync", 0 },
	};

	begin(count, arguments);
	if (count > 3) {
		if (fcntl(atoi(arguments[2]), F_GETSIG_))
			printf("F_GETSIG %d\n", fcntl(atoi(arguments[2]), F_GETSIG_));
		else
			look_at(arguments[3], atoi(arguments[2]));
		CALL("write", arguments[3], write(atoi(arguments[2]), "e", 1));
		return 0;
	}
	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		int fd = make_file("file", O_RDWR | how[i].flags);

		printf("-- %s\n", how[i].name);
		look_at("fresh", fd);
		duplicate(fd);
		show_in_child(fd);
		run_a_copy(arguments, fd, "after exec");
		change_flags(fd);
		take_the_signal(fd);
		run_a_copy(arguments, fd, "after exec, signal 61");
		close(fd);
	}
	return 0;
}
