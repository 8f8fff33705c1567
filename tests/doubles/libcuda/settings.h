/* DOUBLE (simulated device): the machine's simulated hardware, from $SIMULATED_GPU/settings. */
#ifndef SIMULATED_SETTINGS_H
#define SIMULATED_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the simulated hardware lies. */
const char *settings_directory(void);

/* The value of a key, read anew; `otherwise` where it has none. Both go to text. */
void settings_text(const char *key, const char *otherwise, char *text, size_t size);

long long settings_number(const char *key, long long otherwise);

/* How many devices there are. */
int settings_devices(void);

/* The UUID of a device, of 16 bytes. */
void settings_uuid(int device, uint8_t *uuid);

#endif
