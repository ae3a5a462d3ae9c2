/*
 * fuzz/replay.c: runs a fuzz target over the files of its corpus, so that every target is also an ordinary test.
 *
 * Each input lies at the end of a heap block of its own size, so that ASan sees a read past it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	struct stat st;

	if (!file || fstat(fileno(file), &st) < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(1);
	}
	if (!S_ISREG(st.st_mode)) {
		fclose(file);
		return 0;
	}

	uint8_t *data = malloc(st.st_size ? (size_t)st.st_size : 1);
	if (!data || fread(data, 1, (size_t)st.st_size, file) != (size_t)st.st_size) {
		fprintf(stderr, "%s: cannot read it whole\n", path);
		exit(1);
	}
	fclose(file);
	printf("%s\n", path); /* the last line names the input that broke the target */
	fflush(stdout);
	LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
	free(data);
	return 1;
}

int main(int argc, char **argv)
{
	struct dirent **names = NULL;
	int n = argc == 2 ? scandir(argv[1], &names, NULL, alphasort) : -1;
	int replayed = 0;

	if (n < 0) {
		fprintf(stderr, "usage: %s CORPUS-FOLDER, which must exist: %s\n", argv[0],
			argc > 1 ? argv[1] : "none given");
		return 1;
	}
	for (int i = 0; i < n; i++) {
		char path[4096];

		snprintf(path, sizeof(path), "%s/%s", argv[1], names[i]->d_name);
		replayed += replay_file(path);
		free(names[i]);
	}
	free(names);
	LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	if (!replayed)
		fprintf(stderr, "%s holds no input: the test would show nothing\n", argv[1]);
	return !replayed;
}
