/*
 * Starts kprobe in an image that has no shell: as `kube-proxy` it runs `kprobe run` with the arguments it was given, so that
 * kube-proxy's DaemonSet needs another image and nothing else; under any other name the arguments are kprobe's own.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODE "/usr/bin/node"

int main(int argc, char **argv)
{
	static char *const fixed[] = {"node", "--v8-pool-size=1", "/opt/kprobe/kprobe.mjs"};
	const size_t fixed_count = sizeof(fixed) / sizeof(fixed[0]);
	const char *slash = strrchr(argv[0], '/');
	const char *name = slash == NULL ? argv[0] : slash + 1;
	char **args = calloc(fixed_count + (size_t)argc + 2, sizeof(*args));
	size_t count = 0;

	if (args == NULL) {
		perror(argv[0]);
		return 1;
	}
	for (; count < fixed_count; count++)
		args[count] = fixed[count];
	if (strcmp(name, "kube-proxy") == 0)
		args[count++] = "run";
	for (int i = 1; i < argc; i++)
		args[count++] = argv[i];
	/* Each thread of node would keep freed memory in an arena of its own: 4 MiB. */
	if (setenv("MALLOC_ARENA_MAX", "1", 0) == 0)
		execv(NODE, args);
	perror(NODE);
	return 1;
}
