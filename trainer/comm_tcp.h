/* comm_tcp.h: the parts of the TCP transport (docs/protocols.md, "Ranks on several nodes").
 *
 *   comm_tcp_proof.c    who may speak: the two ends of a new connection prove the attempt's secret
 *   comm_tcp_frame.c    what is sent: a header and a payload, each with its authentication tag
 *   comm_tcp_move.c     frames on their way, any number at a time, and the waits for them
 *   comm_tcp_message.c  messages to neighbours, which may wait in the sender
 *   comm_tcp_meet.c     listening, dialling, and how ranks come to know each other
 *   comm_tcp_watch.c    a thread beside the training: answers who connects, hears who ended, sends
 *                       signs of life and what did not fit into a socket
 *   comm_tcp.c          the verbs
 *
 * Two ranks share one connection a family and lane, so that threads which use different groups
 * never touch the same one. The control lane is the watcher's.
 *
 * What comes in is another host's: nothing of it is used before its tag has been checked, and then
 * it is compared with what this rank expects, never used as an index or a length without a bound.
 */
#ifndef TRAINYARD_TRAINER_COMM_TCP_H
#define TRAINYARD_TRAINER_COMM_TCP_H

#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdint.h>

#include "trainer/comm_parts.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers cross the network as they lie in a little-endian memory"
#endif

#define TCP_HOST_SIZE    64 /* of a host's address as text */
#define TCP_NODE_SIZE    64
#define TCP_ATTEMPT_SIZE 64
#define TCP_WHY_SIZE     256
#define TCP_KEY          32
#define TCP_NONCE        32
#define TCP_PROOF        32 /* bytes of crypto_auth */
#define TCP_TAG          16 /* bytes of crypto_onetimeauth */

#define TCP_TICK_MS  100                /* of a wait, between two looks round */
#define TCP_FLUSH_US 2000000            /* for last words to arrive */
#define TCP_CHANNELS 4                  /* two families of a pipeline, two neighbours in each */
#define TCP_QUEUE    2                  /* messages that a send leaves behind */
#define TCP_SCRATCH  (4u * 1024 * 1024) /* bytes: what is summed at a time */
#define TCP_PENDING  64                 /* connections that have not proved themselves, at most */
#define TCP_PROVE_MS 5000               /* and how long they may take */

enum tcp_lane { LANE_CONTROL, LANE_DATA, LANE_MESSAGE };

struct tcp;

/* ---- proof ---- */

/* The first thing on a connection, from the side that dialled. */
struct tcp_hello {
    char magic[8];
    uint64_t epoch;
    uint32_t family, index, lane;
    uint32_t from, to, size; /* ranks */
    uint32_t port;           /* where the dialling rank listens */
    uint32_t zero;
    char host[TCP_HOST_SIZE]; /* and its address */
    char node[TCP_NODE_SIZE];
    char attempt[TCP_ATTEMPT_SIZE];
    unsigned char nonce[TCP_NONCE];
    unsigned char proof[TCP_PROOF];
};
_Static_assert(sizeof(struct tcp_hello) == 304, "a hello has holes");

/* What the other side answers, once it believes the hello. */
struct tcp_answer {
    unsigned char nonce[TCP_NONCE];
    unsigned char proof[TCP_PROOF];
};

/* The last word of the dialling side: that it lives now, and has not recorded its hello. */
struct tcp_last {
    unsigned char proof[TCP_PROOF];
};

/* Both sides' keys for a connection. */
struct tcp_keys {
    unsigned char dialled[TCP_KEY]; /* what the dialling side sends under */
    unsigned char answered[TCP_KEY];
};

void tcp_key_of(const char *secret, unsigned char key[TCP_KEY]);
/* Fills magic, nonce and proof. */
void tcp_say_hello(const unsigned char key[TCP_KEY], struct tcp_hello *h);
int tcp_check_hello(const unsigned char key[TCP_KEY], const struct tcp_hello *h); /* 1: proved */
int tcp_is_hello(const struct tcp_hello *h); /* speaks the protocol, its texts end */
void tcp_say_answer(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                    struct tcp_answer *a);
int tcp_check_answer(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                     const struct tcp_answer *a);
void tcp_say_last(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                  const struct tcp_answer *a, struct tcp_last *l);
int tcp_check_last(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                   const struct tcp_answer *a, const struct tcp_last *l);
void tcp_keys_of(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                 const struct tcp_answer *a, struct tcp_keys *ret);

/* ---- frames ---- */

struct tcp_link {
    int fd;   /* -1: none */
    int peer; /* world rank */
    unsigned char send_key[TCP_KEY], receive_key[TCP_KEY];
    uint64_t sent, received; /* frames: no tag is worth anything in another place */
};

void tcp_link_init(struct tcp_link *l, int fd, int peer, const struct tcp_keys *k, int dialled);
void tcp_link_close(struct tcp_link *l); /* -1 is fine */

enum tcp_what { TCP_CALL, TCP_MESSAGE, TCP_TABLE, TCP_BEAT, TCP_BYE, TCP_OVER };

struct tcp_head {
    uint32_t what; /* enum tcp_what */
    uint32_t zero;
    struct comm_call call; /* of a collective, and of a message; of a sign of life, its number: of
                              calls and comm_progress() so far; else zero */
    uint64_t bytes;        /* of the payload */
};
_Static_assert(sizeof(struct tcp_head) == 40, "a header has holes");

#define TCP_FRAME_HEAD (sizeof(struct tcp_head) + TCP_TAG)

/* One frame being sealed or opened. */
struct tcp_seal {
    unsigned char head[TCP_FRAME_HEAD]; /* header and its tag, as on the wire */
    crypto_onetimeauth_state state;     /* over the payload */
    unsigned char tag[TCP_TAG];         /* of the payload; absent where that is empty */
    unsigned char head_key[TCP_KEY];
};

void tcp_seal_begin(struct tcp_seal *s, struct tcp_link *l, const struct tcp_head *h);
void tcp_open_begin(struct tcp_seal *s, struct tcp_link *l);
/* Once s->head has come: 1 if it is what the peer sent; then it is in *ret. */
int tcp_open_head(const struct tcp_seal *s, struct tcp_head *ret);
void tcp_seal_feed(struct tcp_seal *s, const void *payload, size_t bytes);
void tcp_seal_end(struct tcp_seal *s);    /* after the last of the payload: s->tag */
int tcp_open_end(struct tcp_seal *s);     /* once s->tag has come: 1 if it is right */
size_t tcp_frame_bytes(uint64_t payload); /* on the wire */

/* ---- moves ---- */

/* A frame on its way. */
struct tcp_move {
    struct tcp_link *link;
    int is_send, is_done;
    char *buf;
    struct tcp_head head; /* what is sent, or what must come */
    size_t at, fed;       /* bytes of the frame that have passed; of the payload, authenticated */
    struct tcp_seal seal;
};

void tcp_move_send(struct tcp_move *m, struct tcp_link *l, const struct tcp_head *h,
                   const void *buf);
void tcp_move_recv(struct tcp_move *m, struct tcp_link *l, const struct tcp_head *h, void *buf);

/* Why a move ends early; otherwise an errno. */
enum tcp_trouble { TCP_EOF = -1, TCP_ALTERED = -2, TCP_APART = -3 };
/* Moves what can be moved now. Returns 0 or one of these; *ret_some says if anything moved. */
int tcp_push(struct tcp_move *m, int *ret_some);
int tcp_pull(struct tcp_move *m, int *ret_some);

/* Where a wait stands, for its sentence. */
struct tcp_place {
    struct tcp *t;
    const struct comm *comm;
    const char *what;
};

/* Runs all moves to their end. `polls` has room for count + 1. */
int tcp_moves(const struct tcp_place *p, struct tcp_move *moves, int count, struct pollfd *polls,
              struct err *e);

/* The connection to that world rank has ended, and so has the gang: ERR_PEER. */
int tcp_say_ended(const struct tcp_place *p, int peer, int trouble, struct err *e);

/* ---- the world ---- */

/* A message that a socket did not take at once. */
struct tcp_queued {
    char *wire; /* the frame */
    size_t bytes, sent;
};

/* Messages to one neighbour. */
struct tcp_channel {
    struct tcp_link link;
    pthread_mutex_t mutex;
    pthread_cond_t room;
    struct tcp_queued queue[TCP_QUEUE]; /* [0] is the oldest */
    int queued;
    int is_broken;         /* nothing more can be sent */
    uint64_t taken, given; /* messages received; sent */
};

/* A connection that has proved itself and waits for its group to be made. */
struct tcp_arrival {
    struct tcp_hello hello;
    struct tcp_keys keys;
    int fd; /* -1 once it has been taken: a second one is refused */
};

/* A connection that has not. */
struct tcp_pending {
    int fd;
    int64_t until_us;
    char host[TCP_HOST_SIZE + 8]; /* and port */
    union {
        struct tcp_hello hello;
        unsigned char bytes[sizeof(struct tcp_hello)];
    };
    struct tcp_answer answer;
    union {
        struct tcp_last last;
        unsigned char last_bytes[sizeof(struct tcp_last)];
    };
    size_t got;
};

/* What a rank tells of itself; rank 0 tells everyone. */
struct tcp_address {
    char host[TCP_HOST_SIZE];
    char node[TCP_NODE_SIZE];
    uint32_t port;
    uint32_t zero;
};

struct tcp_peer {
    struct tcp_address address;
    struct tcp_link control;
    int has_left;      /* said goodbye */
    int is_closed;     /* nothing more comes */
    uint64_t progress; /* of its calls and comm_progress(), as its last sign of life had it */
    /* the control frame that is coming in */
    struct tcp_seal seal;
    size_t got;
    struct tcp_head head;
    char *payload;
};

enum tcp_over { OVER_NOT, OVER_DIED, OVER_UNREACHABLE, OVER_GAVE_UP };

/* The end of the gang: as it is told, too. */
struct tcp_ending {
    uint32_t over; /* enum tcp_over */
    uint32_t rank;
    char why[TCP_WHY_SIZE];
};

struct tcp {
    int rank, size;
    int64_t deadline_us, prove_us;
    size_t memory_bytes, memory_used, message_bytes;
    const volatile int *stop;
    unsigned char key[TCP_KEY];
    char attempt[TCP_ATTEMPT_SIZE];
    uint64_t epoch;
    char *master_host; /* the launch document's */
    int master_port;

    struct tcp_peer *peers; /* [size]; the own one has only an address */
    int64_t step;
    uint32_t progress;
    int64_t news_us; /* boot time of the last sign of life of anyone */

    struct tcp_channel channels[TCP_CHANNELS]; /* of all groups; link.fd -1: free */

    pthread_mutex_t mutex;  /* over what follows */
    pthread_cond_t changed; /* arrivals, the table, an end of another rank */
    struct tcp_ending ending;
    int has_table;
    struct tcp_arrival *arrivals;
    int arrival_count;
    pthread_mutex_t control; /* over sending on control links */

    int over_fd; /* readable once the gang is over */
    int wake_fd; /* makes the watcher look again */
    int listener;
    pthread_t watcher;
    int is_watched, is_closing;
    struct tcp_pending *pending; /* the watcher's */
    int pending_count, refused;
    uint32_t beat_progress;
    int64_t beat_cpu_us, beat_us;
    size_t scratch_bytes; /* of all groups */
    void **memory;        /* handed out */
    int memory_count;
};

/* "Rank 2 (node n2, 10.0.0.2)"; returns `out`. */
#define TCP_NAME_SIZE (TCP_HOST_SIZE + TCP_NODE_SIZE + 32)
const char *tcp_name(const struct tcp *t, int rank, char out[TCP_NAME_SIZE]);

/* Another process's words: their printable part, without quotes. */
void tcp_clean(char *text);

/* "in all_reduce at step 7" */
#define TCP_WHERE_SIZE 96
const char *tcp_where(const struct tcp *t, const char *what, char out[TCP_WHERE_SIZE]);

/* ---- the watcher ---- */

int tcp_watch_start(struct tcp *t, struct err *e);
void tcp_watch_stop(struct tcp *t);
void tcp_wake(struct tcp *t);
/* The gang is over: the first to know tells the others. */
void tcp_set_over(struct tcp *t, enum tcp_over over, int rank, const char *why);
int tcp_is_over(struct tcp *t);
/* The sentence for it, ERR_PEER. */
int tcp_say_over(struct tcp *t, const char *what, struct err *e);
/* Sends a control frame to every rank that still listens. */
void tcp_tell_all(struct tcp *t, enum tcp_what what, const void *payload, size_t bytes);
void tcp_tell(struct tcp *t, int rank, enum tcp_what what, const void *payload, size_t bytes);
/* Sends what is queued, as far as the socket takes it. */
void tcp_drain(struct tcp *t, struct tcp_channel *h);
void tcp_news(struct tcp *t);

/* ---- messages ---- */

/* A channel over the link, of those of the world. */
struct tcp_channel *tcp_channel_open(struct tcp *t, const struct tcp_link *l);
void tcp_channel_close(struct tcp *t, struct tcp_channel *h); /* what waits is sent first */
int tcp_message_send(const struct tcp_place *p, struct tcp_channel *h, const void *buf,
                     size_t bytes, struct err *e);
int tcp_message_recv(const struct tcp_place *p, struct tcp_channel *h, void *buf, size_t bytes,
                     struct err *e);

/* ---- meeting ---- */

/* Makes the world's control links; addresses are known afterwards. */
int tcp_meet(struct tcp *t, struct err *e);
/* Links of a lane to these world ranks (this one among them, skipped). */
int tcp_connect(struct tcp *t, enum comm_family family, int index, enum tcp_lane lane,
                const int *members, int size, struct tcp_link *links, struct err *e);
/* The watcher's part: takes connections, and those that wait a step on. */
void tcp_accept(struct tcp *t);
void tcp_prove_on(struct tcp *t, struct tcp_pending *p); /* p->fd is -1 afterwards if it is done */
void tcp_drop_late(struct tcp *t);

#endif
