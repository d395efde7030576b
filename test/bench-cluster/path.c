/*
 * Sends TCP SYNs that rules drop on their way out, and prints the median of nanoseconds of processor time per packet, one
 * line for each destination: path ROUNDS BATCH_US SOURCE ADDRESS:PORT...
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { DESTINATIONS_MAX = 16, ROUNDS_MAX = 101, BURST = 25 };

struct packet {
	struct iphdr ip;
	struct tcphdr tcp;
};

static struct packet packets[DESTINATIONS_MAX];
static struct sockaddr_in destinations[DESTINATIONS_MAX];
static double measured[DESTINATIONS_MAX][ROUNDS_MAX];

/* What the kernel does for this thread, without what others do meanwhile. */
static uint64_t spent_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A source port that differs each time: no packet belongs to the connection of the one before. */
static double batch(int fd, struct packet *packet, const struct sockaddr_in *to, uint64_t batch_ns)
{
	static uint16_t port;
	uint64_t start = spent_ns(), end;
	unsigned sent = 0;

	do {
		for (int i = 0; i < BURST; i++) {
			packet->tcp.source = htons((uint16_t)(1024 + port++ % 60000));
			if (sendto(fd, packet, sizeof(*packet), 0, (const void *)to, sizeof(*to)) >= 0 || errno != EPERM) {
				fprintf(stderr, "a packet was not dropped: %s\n", strerror(errno));
				exit(1);
			}
		}
		sent += BURST;
		end = spent_ns();
	} while (end - start < batch_ns);
	return (double)(end - start) / sent;
}

static int prepare(int index, const char *source, char *destination)
{
	char *colon = strchr(destination, ':');
	struct packet *packet = &packets[index];
	struct sockaddr_in *to = &destinations[index];

	if (!colon)
		return -1;
	*colon = 0;
	to->sin_family = AF_INET;
	if (inet_pton(AF_INET, destination, &to->sin_addr) != 1)
		return -1;
	packet->ip = (struct iphdr){
		.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP, .tot_len = htons(sizeof(*packet)),
		.saddr = inet_addr(source), .daddr = to->sin_addr.s_addr,
	};
	packet->tcp = (struct tcphdr){
		.dest = htons((uint16_t)atoi(colon + 1)), .doff = 5, .syn = 1, .window = htons(1000),
	};
	return 0;
}

int main(int argc, char **argv)
{
	int count = argc - 4, rounds = argc > 1 ? atoi(argv[1]) : 0;
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);

	if (fd < 0 || count < 1 || count > DESTINATIONS_MAX || rounds < 1 || rounds > ROUNDS_MAX)
		return 2;
	for (int i = 0; i < count; i++)
		if (prepare(i, argv[3], argv[i + 4]) != 0)
			return 2;
	/* The first round is for caches alone. */
	for (int round = -1; round < rounds; round++)
		for (int i = 0; i < count; i++) {
			double ns = batch(fd, &packets[i], &destinations[i], (uint64_t)atol(argv[2]) * 1000);

			if (round >= 0)
				measured[i][round] = ns;
		}
	for (int i = 0; i < count; i++) {
		qsort(measured[i], (size_t)rounds, sizeof(double), compare);
		printf("%.0f\n", measured[i][rounds / 2]);
	}
	return 0;
}
