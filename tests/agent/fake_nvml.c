/* A libnvidia-ml.so.1 whose GPUs are lines of the file $FAKE_NVML, read anew at every call.
 *
 *   gpu UUID NAME TOTAL_MIB USED_MIB [key=number ...]   in the order of their indices; keys: ecc pending failed
 *                                                       recovery energy reasons temperature mig
 *   slice CARD UUID TOTAL_MIB USED_MIB
 *   proc UUID PID MIB c|g                               MIB -1: not available
 *   xid UUID CODE                                       each is told once, to who listens
 *   error FUNCTION CODE [UUID]
 *   hang FUNCTION
 *
 * Built with -DOLD it lacks what an older driver lacks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { SUCCESS = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MOST = 64, NAMED = 96 };

typedef struct { char uuid[NAMED]; } Device; /* what a handle points at */
static Device devices[MOST];
static int device_count, is_open, xids_told, events_open;
static char listening[MOST][NAMED];
static int listening_count;

static Device *device(const char *uuid) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) return &devices[i];
    snprintf(devices[device_count].uuid, NAMED, "%s", uuid);
    return &devices[device_count++];
}

/* The next line that begins with the word; its fields follow. */
static int next(FILE *file, const char *word, char *rest) {
    char line[512], first[64];
    int at;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s%n", first, &at) == 1 && !strcmp(first, word)) {
            strcpy(rest, line + at);
            return 1;
        }
    return 0;
}

static FILE *script(void) { return getenv("FAKE_NVML") ? fopen(getenv("FAKE_NVML"), "r") : NULL; }

/* Hangs or fails where the script says so. */
static int begins(const char *function, Device *one) {
    char rest[512], name[128], uuid[NAMED];
    FILE *file = script();
    while (next(file, "hang", rest))
        if (sscanf(rest, "%127s", name) == 1 && !strcmp(name, function)) for (;;) pause();
    if (file) rewind(file);
    int code, found = SUCCESS;
    while (next(file, "error", rest)) {
        int fields = sscanf(rest, "%127s %d %95s", name, &code, uuid);
        if (fields >= 2 && !strcmp(name, function) && (fields == 2 || (one && !strcmp(uuid, one->uuid)))) found = code;
    }
    if (file) fclose(file);
    if (found == SUCCESS && !is_open && strncmp(function, "nvmlInit", 8)) return UNINITIALIZED;
    return found;
}
#define BEGIN(one) { int failed = begins(__func__, one); if (failed) return failed; }

typedef struct { char uuid[NAMED], name[NAMED], rest[512], card[NAMED]; long total, used; int index, is_slice; } Line;

static int find(const char *uuid, int index, Line *found) {
    char rest[512];
    FILE *file = script();
    int n = 0, at, ok = 0;
    while (!ok && next(file, "gpu", rest)) {
        if (sscanf(rest, "%95s %95s %ld %ld%n", found->uuid, found->name, &found->total, &found->used, &at) < 4) continue;
        strcpy(found->rest, rest + at);
        found->index = n++;
        found->is_slice = 0;
        ok = uuid ? !strcmp(uuid, found->uuid) : found->index == index;
    }
    if (file && !ok && uuid) rewind(file);
    while (!ok && uuid && next(file, "slice", rest))
        if (sscanf(rest, "%95s %95s %ld %ld", found->card, found->uuid, &found->total, &found->used) == 4)
            ok = found->is_slice = !strcmp(uuid, found->uuid);
    if (file) fclose(file);
    return ok;
}

/* A key of a gpu's line: NOT_SUPPORTED where it has none. */
static int value(Device *one, const char *key, u64 *found) {
    Line line;
    char wanted[64];
    if (!find(one->uuid, 0, &line) || line.is_slice) return NOT_SUPPORTED;
    snprintf(wanted, sizeof wanted, " %s=", key);
    char *at = strstr(line.rest, wanted);
    if (!at) return NOT_SUPPORTED;
    *found = strtoull(at + strlen(wanted), NULL, 10);
    return SUCCESS;
}

static int value32(Device *one, const char *key, u32 *found) {
    u64 wide = 0;
    int failed = value(one, key, &wide);
    *found = (u32)wide;
    return failed;
}

int nvmlInitWithFlags(u32 flags) { (void)flags; BEGIN(NULL); is_open = 1; return SUCCESS; }
int nvmlShutdown(void) { is_open = events_open = listening_count = 0; return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, u32 size) { BEGIN(NULL); snprintf(text, size, "570.1"); return SUCCESS; }

int nvmlDeviceGetCount_v2(u32 *count) {
    char rest[512];
    BEGIN(NULL);
    FILE *file = script();
    for (*count = 0; next(file, "gpu", rest);) ++*count;
    if (file) fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **one) {
    Line line;
    if (!find(NULL, (int)index, &line)) return NOT_FOUND;
    BEGIN(device(line.uuid));
    *one = device(line.uuid);
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *one, char *text, u32 size) { BEGIN(one); snprintf(text, size, "%s", one->uuid); return SUCCESS; }

int nvmlDeviceGetName(Device *one, char *text, u32 size) {
    Line line;
    BEGIN(one);
    if (!find(one->uuid, 0, &line)) return NOT_FOUND;
    snprintf(text, size, "%s", line.name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *one, u64 memory[3]) {
    Line line;
    BEGIN(one);
    if (!find(one->uuid, 0, &line)) return NOT_FOUND;
    memory[0] = (u64)line.total << 20;
    memory[1] = (u64)(line.total - line.used) << 20;
    memory[2] = (u64)line.used << 20;
    return SUCCESS;
}

typedef struct { u32 pid; u64 used; u32 gpu_instance, compute_instance; } Process;

static int processes(Device *one, u32 *count, Process *found, char kind) {
    char rest[512], uuid[NAMED], which;
    u32 pid, room = *count;
    long mib;
    FILE *file = script();
    for (*count = 0; next(file, "proc", rest);)
        if (sscanf(rest, "%95s %u %ld %c", uuid, &pid, &mib, &which) == 4 && which == kind && !strcmp(uuid, one->uuid)) {
            if (*count < room) found[*count] = (Process){pid, mib < 0 ? ~0ULL : (u64)mib << 20, ~0u, ~0u};
            ++*count;
        }
    if (file) fclose(file);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(Device *one, u32 *count, Process *found) { BEGIN(one); return processes(one, count, found, 'c'); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(Device *one, u32 *count, Process *found) { BEGIN(one); return processes(one, count, found, 'c'); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *one, u32 *count, Process *found) { BEGIN(one); return processes(one, count, found, 'g'); }
int nvmlDeviceGetPowerUsage(Device *one, u32 *milliwatts) { BEGIN(one); *milliwatts = 123456; return SUCCESS; }
int nvmlDeviceGetUtilizationRates(Device *one, u32 rates[2]) { BEGIN(one); rates[0] = 87; rates[1] = 1; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(Device *one, u64 *energy) { BEGIN(one); return value(one, "energy", energy); }
int nvmlDeviceGetCurrentClocksEventReasons(Device *one, u64 *reasons) { BEGIN(one); return value(one, "reasons", reasons); }
int nvmlDeviceGetMaxMigDeviceCount(Device *one, u32 *count) { BEGIN(one); *count = 7; return SUCCESS; }

int nvmlDeviceGetTotalEccErrors(Device *one, u32 type, u32 counter, u64 *count) {
    BEGIN(one);
    return type == 1 && counter == 0 ? value(one, "ecc", count) : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(Device *one, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    BEGIN(one);
    *corrected = *uncorrected = 0;
    int unknown = value32(one, "pending", pending);
    return unknown ? unknown : value32(one, "failed", failed);
}

int nvmlDeviceGetMigMode(Device *one, u32 *current, u32 *pending) {
    BEGIN(one);
    int unknown = value32(one, "mig", current);
    *pending = *current;
    return unknown;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *card, u32 index, Device **one) {
    char rest[512], of[NAMED], uuid[NAMED];
    u32 n = 0;
    BEGIN(card);
    FILE *file = script();
    *one = NULL;
    while (!*one && next(file, "slice", rest))
        if (sscanf(rest, "%95s %95s", of, uuid) == 2 && !strcmp(of, card->uuid) && n++ == index) *one = device(uuid);
    if (file) fclose(file);
    return *one ? SUCCESS : NOT_FOUND;
}

typedef struct { u32 field, scope; long long at, latency; u32 type; int failed; union { u32 number; u64 wide; } value; } Field;

int nvmlDeviceGetFieldValues(Device *one, int count, Field *fields) {
    BEGIN(one);
    for (int i = 0; i < count; i++) {
        fields[i].type = 1; /* unsigned int */
        fields[i].failed = fields[i].field == 230 ? value32(one, "recovery", &fields[i].value.number) : NOT_SUPPORTED;
    }
    return SUCCESS;
}

typedef struct { Device *one; u64 type, code; u32 gpu_instance, compute_instance; } Event;

int nvmlEventSetCreate(void **set) { BEGIN(NULL); *set = &events_open; events_open = 1; return SUCCESS; }

int nvmlDeviceRegisterEvents(Device *one, u64 types, void *set) {
    BEGIN(one);
    if (!set || types != 8) return NOT_SUPPORTED;
    strcpy(listening[listening_count++ % MOST], one->uuid);
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, Event *event, u32 timeout) {
    char rest[512], uuid[NAMED];
    u32 code;
    int n = 0;
    (void)timeout;
    BEGIN(NULL);
    FILE *file = set ? script() : NULL;
    while (next(file, "xid", rest)) {
        if (sscanf(rest, "%95s %u", uuid, &code) != 2 || n++ < xids_told) continue;
        xids_told++;
        for (int i = 0; i < listening_count && i < MOST; i++)
            if (!strcmp(listening[i], uuid)) {
                *event = (Event){device(uuid), 8, code, ~0u, ~0u};
                fclose(file);
                return SUCCESS;
            }
    }
    if (file) fclose(file);
    return TIMEOUT;
}
#endif

int nvmlDeviceGetTemperature(Device *one, u32 sensor, u32 *degrees) { (void)sensor; BEGIN(one); return value32(one, "temperature", degrees); }
