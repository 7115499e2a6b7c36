/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The function that a program would have called without us.
 *
 * Promise: it is looked for where the dynamic linker would have looked: first where all programs'
 * libraries are, then in what the caller was loaded with, which nobody else sees (RTLD_LOCAL of
 * dlopen(3), a plugin with a library of its own). It is looked for once for each place that calls,
 * where its library is one that we may keep loaded for good: a plugin that brings it itself may go.
 *
 * To look waits for whoever loads a library just then. What is remembered takes no lock: in a child
 * of a fork somebody might have it for ever.
 */
#include "routes/routes.h"

#define RTLD_NEXT_     ((void *)-1l)
#define RTLD_LAZY_     1
#define RTLD_NOLOAD_   4
#define RTLD_NODELETE_ 0x1000
#define OBJECT_MAX     1024 /* of a library's path */

/* Keys that are no caller's address: of what is being filled, and of what is true for all. */
enum { BUSY = 1, ANYBODYS };

/* Of glibc and musl alike. */
struct object_at {
	const char *path;
	void *base;
	const char *symbol;
	void *address;
};
struct object { /* the beginning of struct dl_phdr_info */
	uintptr_t base;
	const char *path;
};
extern void *dlopen(const char *path, int mode) __attribute__((weak));
extern int dlclose(void *handle) __attribute__((weak));
extern char *dlerror(void) __attribute__((weak));
extern int dladdr(const void *address, struct object_at *at) __attribute__((weak));
extern int dl_iterate_phdr(int (*look)(struct object *, size_t, void *), void *data)
	__attribute__((weak));

static int is_ours(void *function)
{
	struct object_at there, here;

	return dladdr(function, &there) && dladdr((void *)sl_next, &here) &&
	       there.base == here.base;
}

/* NAME as those find it who were loaded with the library at PATH. */
static void *in_library(const char *path, const char *name)
{
	void *library = dlopen(path, RTLD_LAZY_ | RTLD_NOLOAD_), *function;

	if (!library)
		return NULL;
	function = dlsym(library, name);
	dlclose(library);
	return function && !is_ours(function) ? function : NULL;
}

struct look {
	unsigned left; /* libraries to be passed over */
	int found;
	char path[OBJECT_MAX];
};

static int take_path(struct object *o, size_t size, void *data)
{
	struct look *look = data;
	unsigned n = 0;

	(void)size;
	if (look->left--)
		return 0;
	for (; o->path[n] && n < OBJECT_MAX - 1; n++)
		look->path[n] = o->path[n];
	/* The program itself has no path. */
	look->found = n && n < OBJECT_MAX - 1;
	look->path[look->found ? n : 0] = 0;
	return 1;
}

/* In whatever is loaded: the caller need not be who calls, where his call was his last act. */
static NOINLINE void *anywhere(const char *name)
{
	struct look look;
	unsigned n;

	for (n = 0;; n++) {
		void *function;

		look.left = n;
		if (!dl_iterate_phdr(take_path, &look))
			return NULL;
		function = look.found ? in_library(look.path, name) : NULL;
		if (function)
			return function;
	}
}

static void *for_caller(const char *name, uint64_t caller)
{
	struct object_at at;
	void *function = NULL;

	if (!dlopen || !dlclose || !dladdr)
		return NULL;
	if (dladdr((const void *)(uintptr_t)caller, &at) && at.path[0])
		function = in_library(at.path, name);
	if (!function && dl_iterate_phdr)
		function = anywhere(name);
	/* What failed here is not the program's to hear of. */
	if (dlerror)
		dlerror();
	return function;
}

static int begins(const char *text, const char *with)
{
	while (*with && *text == *with)
		text++, with++;
	return !*with;
}

/* Whether a function is there for good. A plugin that brings one itself may go. */
static int stays(void *function)
{
	struct object_at at;
	const char *name, *c;

	if (!dlopen || !dladdr)
		return 1; /* nor can anybody unload one */
	if (!dladdr(function, &at))
		return 0;
	for (name = c = at.path; *c; c++)
		if (*c == '/')
			name = c + 1;
	return (begins(name, "liburing.") || begins(name, "libc.") || begins(name, "librt.")) &&
	       dlopen(at.path, RTLD_LAZY_ | RTLD_NOLOAD_ | RTLD_NODELETE_);
}

static void *recall(struct sl_found *f, uint64_t key)
{
	void *function;

	if (__atomic_load_n(&f->key, __ATOMIC_ACQUIRE) != key)
		return NULL;
	function = __atomic_load_n(&f->function, __ATOMIC_ACQUIRE);
	return __atomic_load_n(&f->key, __ATOMIC_ACQUIRE) == key ? function : NULL;
}

static void remember(struct sl_found *f, uint64_t key, void *function)
{
	uint64_t before = __atomic_load_n(&f->key, __ATOMIC_ACQUIRE);

	if (!function || before == BUSY || !stays(function) || !CAS(f->key, before, BUSY))
		return;
	__atomic_store_n(&f->function, function, __ATOMIC_RELEASE);
	__atomic_store_n(&f->key, key, __ATOMIC_RELEASE);
}

void *sl_next(struct sl_next *next, const char *name, uint64_t caller)
{
	struct sl_found *its = &next->of[1 + (caller * 0x9e3779b97f4a7c15ull >> 61)];
	void *function = recall(&next->of[0], ANYBODYS);
	int *e, was;

	if (!function)
		function = recall(its, caller);
	if (LIKELY(function) || !dlsym)
		return function;
	e = __errno_location ? __errno_location() : &was;
	was = *e;
	function = dlsym(RTLD_NEXT_, name);
	remember(&next->of[0], ANYBODYS, function);
	if (!function) {
		function = for_caller(name, caller);
		remember(its, caller, function);
	}
	*e = was;
	return function;
}
