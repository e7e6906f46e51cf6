/* What the programs of many objects share: how much memory and how many descriptors the process uses. */
#ifndef C_TESTS_HEAVY_H
#define C_TESTS_HEAVY_H

#include "../stress/stress.h"

#include <dirent.h>
#include <sys/stat.h>

MAYBE long status_kib(const char *name)
{
    FILE *f = NEED(fopen("/proc/self/status", "re"));
    char line[256];
    long kib = -1;

    while (kib < 0 && fgets(line, sizeof(line), f))
        if (!strncmp(line, name, strlen(name)))
            kib = atol(line + strlen(name));
    fclose(f);
    if (kib < 0)
        die("no %s", name);
    return kib;
}

/* Pages that shared memory files hold, whoever maps them. */
MAYBE long shared_bytes(void)
{
    DIR *dir = NEED(opendir("/proc/self/fd"));
    struct dirent *entry;
    long bytes = 0;

    while ((entry = readdir(dir))) {
        char to[64] = "";
        struct stat st;

        if (readlinkat(dirfd(dir), entry->d_name, to, sizeof(to) - 1) > 0 && !strncmp(to, "/memfd:", 7) &&
            !fstat(atoi(entry->d_name), &st))
            bytes += (long)st.st_blocks * 512;
    }
    closedir(dir);
    /* Ours are mapped, and where the descriptor is closed only the mapping tells. */
    return bytes > status_kib("RssShmem:") * 1024 ? bytes : status_kib("RssShmem:") * 1024;
}

MAYBE long used(void)
{
    return (status_kib("RssAnon:") + status_kib("RssFile:")) * 1024 + shared_bytes();
}

#endif
