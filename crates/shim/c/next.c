/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The function that a program would have called without us.
 *
 * Promise: it is looked for where the dynamic linker would have looked: first where all programs'
 * libraries are, then in what the caller was loaded with, which nobody else sees (RTLD_LOCAL of
 * dlopen(3), a plugin with a library of its own). What was found counts as long as no library has
 * gone since, and what was found for one caller as long as none has come. To look waits for whoever
 * loads a library just then; to see that nothing has changed does not.
 */
#include "shim.h"

#define RTLD_NEXT_   ((void *)-1l)
#define RTLD_LAZY_   1
#define RTLD_NOLOAD_ 4
#define OBJECT_MAX   1024 /* of a library's path */
#define BUSY         1

/* Of glibc and musl alike. */
struct object_at {
	const char *path;
	void *base;
	const char *symbol;
	void *address;
};
struct object { /* struct dl_phdr_info */
	uintptr_t base;
	const char *path;
	const void *headers;
	uint16_t count;
	unsigned long long adds, subs;
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

static int take_changes(struct object *o, size_t size, void *data)
{
	unsigned long long *changes = data;

	if (size < offsetof(struct object, subs) + sizeof o->subs)
		return 1;
	changes[0] = o->adds;
	changes[1] = o->subs;
	return 1;
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

	if (!function || before == BUSY || !CAS(f->key, before, BUSY))
		return;
	__atomic_store_n(&f->function, function, __ATOMIC_RELEASE);
	__atomic_store_n(&f->key, key, __ATOMIC_RELEASE);
}

void *sl_next(struct sl_next *next, const char *name, uint64_t caller)
{
	const uint64_t factor = 0x9e3779b97f4a7c15ull;
	struct sl_found *its = &next->of[1 + (caller * factor >> 61)];
	unsigned long long changes[2] = { 0, 0 };
	uint64_t shared, own;
	void *function;
	int *e, was;

	if (dl_iterate_phdr)
		dl_iterate_phdr(take_changes, changes);
	shared = (changes[1] + 1) * factor | 2;
	own = ((changes[0] * factor ^ shared) * factor ^ caller) | 2;
	function = recall(&next->of[0], shared);
	if (!function)
		function = recall(its, own);
	if (LIKELY(function) || !dlsym)
		return function;
	e = __errno_location ? __errno_location() : &was;
	was = *e;
	function = dlsym(RTLD_NEXT_, name);
	remember(&next->of[0], shared, function);
	if (!function) {
		function = for_caller(name, caller);
		remember(its, own, function);
	}
	*e = was;
	return function;
}
