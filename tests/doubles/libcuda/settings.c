#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared.h"

const char *settings_directory(void)
{
	const char *named = getenv("SIMULATED_GPU");

	return named && *named ? named : "/run/simulated-gpu";
}

void settings_text(const char *key, const char *otherwise, char *text, size_t size)
{
	char path[512], line[512];
	size_t length = strlen(key);
	FILE *file;

	snprintf(text, size, "%s", otherwise);
	snprintf(path, sizeof(path), "%s/settings", settings_directory());
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, key, length) && line[length] == '=')
			snprintf(text, size, "%s", line + length + 1);
	}
	if (file)
		fclose(file);
}

long long settings_number(const char *key, long long otherwise)
{
	char text[64];

	settings_text(key, "", text, sizeof(text));
	return *text ? strtoll(text, NULL, 0) : otherwise;
}

int settings_devices(void)
{
	long long count = settings_number("devices", 2);

	return count < 0 ? 0 : count > SIMULATED_MAX_DEVICES ? SIMULATED_MAX_DEVICES : (int)count;
}

void settings_uuid(int device, uint8_t *uuid)
{
	uint64_t seed = (uint64_t)settings_number("seed", 1);

	memset(uuid, 0, SIMULATED_UUID);
	memcpy(uuid, &seed, sizeof(seed));
	uuid[SIMULATED_UUID - 1] = (uint8_t)(device + 1);
}
