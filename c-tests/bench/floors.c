/* floors REPETITIONS [MILLISECONDS]: what two processes, each on a core of its own, can do without verbs: `round_ns`, a cache line to
 * the other core and back; `eventfd_ns`, one way of a ping-pong in which each end sleeps in read(2) on an eventfd;
 * `shared1m_gbs`, memcpy of 1 MiB into a memfd that both have mapped. */
#include "two.h"
#include <sys/eventfd.h>

enum { COPY = 1 << 20 };

static void round_trip(int driver)
{
	unsigned n = 0;
	if (driver) {
		double ns = TIMED(100, {
			atomic_store_explicit(&sh->there, ++n, memory_order_release);
			while (atomic_load_explicit(&sh->back, memory_order_acquire) != n)
				;
		});
		say("round_ns", ns);
		atomic_store(&sh->stop, 1);
		atomic_store(&sh->there, ++n);
		return;
	}
	while (!atomic_load_explicit(&sh->stop, memory_order_relaxed)) {
		unsigned next = n + 1;
		while (atomic_load_explicit(&sh->there, memory_order_acquire) != next)
			;
		atomic_store_explicit(&sh->back, n = next, memory_order_release);
	}
}

static void put(int fd, uint64_t value)
{
	CHECK(write(fd, &value, sizeof value) == sizeof value);
}

static uint64_t get(int fd)
{
	uint64_t value;
	CHECK(read(fd, &value, sizeof value) == sizeof value);
	return value;
}

static void event_ping_pong(int driver, const int fds[2])
{
	if (driver) {
		double ns = TIMED(16, {
			put(fds[0], 1);
			get(fds[1]);
		});
		put(fds[0], 2);
		say("eventfd_ns", ns / 2);
		return;
	}
	while (get(fds[0]) == 1)
		put(fds[1], 1);
}

static void copy(char *to)
{
	char *from = mmap(NULL, COPY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(from != MAP_FAILED);
	memset(from, 1, COPY);
	double ns = TIMED(4, {
		memcpy(to, from, COPY);
		__asm__ volatile("" ::: "memory");
	});
	say("shared1m_gbs", COPY / ns);
	munmap(from, COPY);
}

int main(int argc, char **argv)
{
	int fds[2] = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC)}, file = memfd_create("floors", MFD_CLOEXEC);
	CHECK(fds[0] >= 0 && fds[1] >= 0 && file >= 0 && !ftruncate(file, COPY));
	int driver = two_begin(argc, argv);
	char *both = mmap(NULL, COPY, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(both != MAP_FAILED);
	memset(both, 1, COPY);
	p.tcp = between;
	for (int i = 0; i < repetitions; i++) {
		if (driver)
			atomic_store(&sh->stop, 0), atomic_store(&sh->there, 0), atomic_store(&sh->back, 0);
		tcp_sync(&p);
		round_trip(driver);
		tcp_sync(&p);
		event_ping_pong(driver, fds);
		tcp_sync(&p);
		if (driver)
			copy(both);
	}
	return two_end(driver);
}
