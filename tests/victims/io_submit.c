/* The kernel's AIO through syscall(), as programs without libaio make it. */
#include "io_submit.h"

static long or_error(long result)
{
	return result < 0 ? -errno : result;
}

/* errno is syscall's own, so what a failure leaves there is the result. */
static long submit(unsigned long context, long n, struct block **blocks)
{
	return or_error(syscall(SYS_io_submit, context, n, blocks));
}

static long get_events(unsigned long context, long n, struct event *events)
{
	long wait[2] = { 5, 0 };

	return or_error(syscall(SYS_io_getevents, context, n, n, events, wait));
}

int main(int count, char **arguments)
{
	unsigned long context = 0;

	begin(count, arguments);
	must((int)syscall(SYS_io_setup, 64, &context), "io_setup");
	all_cases(context);
	CALL("io_destroy", "", syscall(SYS_io_destroy, context));
	return 0;
}
