// A program of Go's with a thread of C's that goes through Go's own Syscall6 step by step, once. The
// handler of the step between the two instructions in front of the call that are exchanged says
// "there", and returns when a line has been read; then the program says "back". At the end of its
// input it ends. The handler's stack lies on the heap, is "locked" in its upper part, or is memory that
// is "shared", as the first argument says.
package main

/*
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { WHOLE = 1 << 20, PART = 1 << 16, DEEP = 100000 };

static unsigned long function;
static char kind;
static volatile int is_there, goes_on, is_back;

static void handle(int number, siginfo_t *info, void *context)
{
	enum { STEPS = 1 << 8 };
	ucontext_t *c = context;
	const unsigned char *at = (const unsigned char *)c->uc_mcontext.gregs[REG_RIP];
	struct timespec nap = { 0, 1000000 };
	volatile char *deep = alloca(DEEP);

	// mov %rcx, %rsi; here: mov %rbx, %rdi; syscall
	if ((unsigned long)at - function > 256 || memcmp(at - 3, "\x48\x89\xce\x48\x89\xdf\x0f\x05", 8))
		return;
	deep[0] = 1;
	is_there = 1;
	while (!goes_on)
		syscall(SYS_nanosleep, &nap, NULL);
	c->uc_mcontext.gregs[REG_EFL] &= ~STEPS;
	is_back = 1;
}

static void *step(void *unused)
{
	int flags = MAP_ANONYMOUS | (kind == 's' ? MAP_SHARED : MAP_PRIVATE);
	void *mapped = mmap(NULL, WHOLE, PROT_READ | PROT_WRITE, flags, -1, 0);
	stack_t stack = { kind == 'h' ? malloc(WHOLE) : mapped, 0, WHOLE };
	register long rax __asm__("rax") = SYS_getpid;

	if (kind == 'l' && mlock((char *)mapped + WHOLE - PART, PART))
		return NULL;
	sigaltstack(&stack, NULL);
	__asm__ volatile("xor %%ebx, %%ebx; xor %%ecx, %%ecx; xor %%edi, %%edi; xor %%esi, %%esi\n\t"
			 "xor %%r8d, %%r8d; mov %1, %%r9; lea -128(%%rsp), %%rsp\n\t"
			 "pushfq; orq $256, (%%rsp); popfq; call *%%r9; lea 128(%%rsp), %%rsp"
			 : "+a"(rax) : "m"(function)
			 : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
	return unused;
}

static int begin(unsigned long at, char of)
{
	struct sigaction action;
	pthread_t steps;

	function = at;
	kind = of;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = handle;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	return sigaction(SIGTRAP, &action, NULL) || pthread_create(&steps, NULL, step, NULL);
}

static int there(void) { return is_there; }
static int back(void) { return is_back; }
static void go_on(void) { goes_on = 1; }
*/
import "C"

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"strings"
	"time"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	file, err := elf.Open("/proc/self/exe")
	must(err)
	symbols, err := file.Symbols()
	must(err)
	var at uint64
	for _, s := range symbols {
		// internal/runtime/syscall/linux, runtime/internal/syscall: as the version has it.
		if strings.Contains(s.Name, "internal/") && strings.HasSuffix(s.Name, ".Syscall6") {
			at = s.Value
		}
	}
	if at == 0 || C.begin(C.ulong(at), C.char(os.Args[1][0])) != 0 {
		panic("there is no such function, or no thread")
	}
	fmt.Println("ready")
	for C.there() == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("there")
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	C.go_on()
	for C.back() == 0 {
		time.Sleep(time.Millisecond)
	}
	// Whatever it returned to has been executed by now.
	time.Sleep(50 * time.Millisecond)
	fmt.Println("back")
	lines.Scan()
}
