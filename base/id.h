/* id.h: identifiers that sort by time: a prefix, 48 bits of wall milliseconds and 72 random
 * bits in Crockford base32, "job_01k8z4q9tw3v7m2c5xd8hbn6re". */
#ifndef TRAINYARD_BASE_ID_H
#define TRAINYARD_BASE_ID_H

#define ID_SIZE 40 /* with the NUL; a prefix has at most 8 characters */

char *id_new(const char *prefix, char out[ID_SIZE]); /* returns `out` */

/* 1 if `s` is `prefix`_ and 24 characters of the alphabet. */
int id_valid(const char *prefix, const char *s);

/* 256 random bits as 64 hex digits: per-attempt secrets, tokens. */
#define ID_SECRET_SIZE 65
void id_secret(char out[ID_SECRET_SIZE]);

#endif
