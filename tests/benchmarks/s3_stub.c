/* An S3 server that costs next to nothing, so that a benchmark measures its client: a thread per connection, no
 * signatures checked, and of each object only the size and the first 8192 bytes are kept.  The rest is read into one
 * buffer and answered as zeros.  Knows PUT, GET with one range from its start, HEAD and DELETE; nothing else.
 *
 * cc -O2 -pthread -o s3_stub s3_stub.c && ./s3_stub     prints "port N", serves on loopback, ends with its stdin.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEPT 8192
#define MOST 65536
#define PIECE (1 << 20)

struct object {
    char path[256];
    size_t size;
    int gone;
    char head[KEPT];
};

static struct object *objects[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char zeros[PIECE];

/* The slot of a path: its object's, or the free one where it would go. */
static struct object **slot(const char *path) {
    unsigned at = 2166136261u;
    for (const char *c = path; *c; c++) at = (at ^ (unsigned char)*c) * 16777619u;
    for (at %= MOST; objects[at] && strcmp(objects[at]->path, path); at = (at + 1) % MOST);
    return &objects[at];
}

static int send_all(int fd, const char *data, size_t length, int more) {
    while (length) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (sent <= 0) return -1;
        data += sent;
        length -= sent;
    }
    return 0;
}

static const char *field(const char *head, const char *name) {
    const char *found = strcasestr(head, name);
    return found ? found + strlen(name) : NULL;
}

static int put(int fd, const char *path, size_t size, char *body, size_t have) {
    static __thread char piece[PIECE];
    struct object *made = malloc(sizeof *made);
    size_t done = 0;
    snprintf(made->path, sizeof made->path, "%s", path);
    made->size = size;
    made->gone = 0;
    memset(made->head, 0, KEPT);
    while (done < size) {
        char *data = have ? body : piece;
        ssize_t got = have ? (ssize_t)have : recv(fd, piece, sizeof piece < size - done ? sizeof piece : size - done, 0);
        if (got <= 0) {
            free(made);
            return -1;
        }
        if (done < KEPT) memcpy(made->head + done, data, (size_t)got < KEPT - done ? (size_t)got : KEPT - done);
        done += got;
        have = 0;
    }
    pthread_mutex_lock(&lock);
    struct object **place = slot(path);
    free(*place);
    *place = made;
    pthread_mutex_unlock(&lock);
    const char *answer = "HTTP/1.1 200 OK\r\nETag: \"stub\"\r\nContent-Length: 0\r\n\r\n";
    return send_all(fd, answer, strlen(answer), 0);
}

static int get(int fd, const char *path, const char *range, int body) {
    char head[KEPT], answer[512];
    size_t size = 0;
    int found = 0;
    pthread_mutex_lock(&lock);
    struct object *object = *slot(path);
    if (object && !object->gone) {
        found = 1;
        size = object->size;
        memcpy(head, object->head, KEPT);
    }
    pthread_mutex_unlock(&lock);
    if (!found) {
        const char *none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        return send_all(fd, none, strlen(none), 0);
    }
    size_t last = size - 1;
    if (range && strchr(range, '-') && strtoull(strchr(range, '-') + 1, NULL, 10) < last)
        last = strtoull(strchr(range, '-') + 1, NULL, 10);
    size_t length = last + 1;
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 %s\r\nETag: \"stub\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
                     "Content-Length: %zu\r\n",
                     range ? "206 Partial Content" : "200 OK", length);
    if (range) n += snprintf(answer + n, sizeof answer - n, "Content-Range: bytes 0-%zu/%zu\r\n", last, size);
    n += snprintf(answer + n, sizeof answer - n, "\r\n");
    if (send_all(fd, answer, n, body)) return -1;
    if (!body) return 0;
    size_t first = length < KEPT ? length : KEPT;
    if (send_all(fd, head, first, length > first)) return -1;
    for (size_t left = length - first; left;) {
        size_t piece = left < PIECE ? left : PIECE;
        if (send_all(fd, zeros, piece, 0)) return -1;
        left -= piece;
    }
    return 0;
}

static void *serve(void *argument) {
    int fd = (int)(long)argument;
    char buffer[65536], method[8], path[256];
    size_t have = 0;
    for (;;) {
        char *end = NULL;
        while (!(end = have ? memmem(buffer, have, "\r\n\r\n", 4) : NULL)) {
            if (have == sizeof buffer - 1) goto over;
            ssize_t got = recv(fd, buffer + have, sizeof buffer - 1 - have, 0);
            if (got <= 0) goto over;
            have += got;
        }
        *end = 0;
        if (sscanf(buffer, "%7s %255s", method, path) != 2) goto over;
        path[strcspn(path, "?")] = 0;
        char *body = end + 4;
        have -= body - buffer;
        const char *length = field(buffer, "\r\nContent-Length:"), *range = field(buffer, "\r\nRange:");
        size_t size = length ? strtoull(length, NULL, 10) : 0;
        int failed;
        if (!strcmp(method, "PUT")) {
            failed = put(fd, path, size, body, have);
            have = 0;
        } else if (!strcmp(method, "DELETE")) {
            pthread_mutex_lock(&lock);
            struct object *object = *slot(path);
            if (object) object->gone = 1;
            pthread_mutex_unlock(&lock);
            const char *gone = "HTTP/1.1 204 No Content\r\n\r\n";
            failed = send_all(fd, gone, strlen(gone), 0);
        } else {
            failed = get(fd, path, range, strcmp(method, "HEAD") != 0);
        }
        if (failed) goto over;
        memmove(buffer, body, have);
    }
over:
    close(fd);
    return NULL;
}

static void *until_stdin_ends(void *argument) {
    char byte;
    while (read(0, &byte, 1) > 0);
    _exit(0);
    return argument;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    pthread_t thread;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 256)) return 1;
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    pthread_create(&thread, NULL, until_stdin_ends, NULL);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_create(&thread, NULL, serve, (void *)(long)fd);
        pthread_detach(thread);
    }
}
