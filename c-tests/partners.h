/* Other processes of a test: the program executes itself, and they do what it tells them over a socket. */
#ifndef C_TESTS_PARTNERS_H
#define C_TESTS_PARTNERS_H

#include "common.h"

#include <signal.h>
#include <sys/wait.h>

struct partner {
    int socket;
    pid_t pid;
};

/* Starts the program anew as "name SOCKET FD"; the descriptor must not be close-on-exec. */
MAYBE struct partner spawn_partner(const char *name, int fd)
{
    char number[2][12];
    struct partner p;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    p.socket = pair[0];
    p.pid = fork();
    if (p.pid < 0)
        die("fork");
    if (p.pid == 0) {
        sprintf(number[0], "%d", pair[1]);
        sprintf(number[1], "%d", fd);
        execl(own_path(), name, number[0], number[1], NULL);
        _exit(1);
    }
    close(pair[1]);
    return p;
}

/* The fields that tests look at: what is between them is not for sending. */
MAYBE void copy_wc(struct ibv_wc *to, struct ibv_wc wc)
{
    to->wr_id = wc.wr_id;
    to->status = wc.status;
    to->opcode = wc.opcode;
    to->byte_len = wc.byte_len;
    to->imm_data = wc.imm_data;
    to->qp_num = wc.qp_num;
    to->wc_flags = wc.wc_flags;
}

MAYBE void kill_partner(struct partner *p)
{
    kill(p->pid, SIGKILL);
    if (waitpid(p->pid, NULL, 0) != p->pid)
        die("waitpid");
    close(p->socket);
}

#endif
