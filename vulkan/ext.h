// The part of the Vulkan interface that the binding lacks or is unsafe for: everything after version 1.0, and whatever runs
// while a model computes. Handles are plain pointers and numbers, so that no Go memory holds C pointers.
#ifndef TERRACE_VULKAN_EXT_H
#define TERRACE_VULKAN_EXT_H
#include <stdint.h>
#include <stddef.h>

typedef struct tv_device tv_device;

// tv_features is what a device has of what this backend can use, and its limits.
typedef struct {
	uint32_t api;
	uint32_t device_type; // VkPhysicalDeviceType
	uint32_t vendor, device;
	uint32_t subgroup;
	uint32_t address, int64, int16, int8, storage8, storage16, float64, float16, timeline, dot_product, dot_accelerated;
	uint32_t memory_budget, host_import, portability, transfers;
	uint32_t max_push, max_shared, max_invocations, max_groups_x, max_groups_y, max_groups_z;
	uint64_t max_allocation, max_buffer, import_alignment;
	uint32_t denorms, specials, nearest; // modes that float32 arithmetic can be held to: preserve subnormals, zeros' signs and NaN; round to nearest
	float timestamp_period;
	uint32_t timestamp_bits;
	uint8_t uuid[16]; // of the pipeline cache
	char name[256], driver[256];
} tv_features;

typedef struct {
	uint64_t size, budget; // budget is 0 where the device does not tell
	uint32_t device_local;
} tv_heap;

typedef struct {
	uint32_t heap, device_local, host_visible, coherent, cached;
} tv_type;

typedef struct {
	uint32_t heaps, types;
	tv_heap heap[16];
	tv_type type[32];
} tv_memory;

// tv_block is an allocation under one buffer that covers it.
typedef struct {
	uint64_t memory, buffer, address;
	void *mapped; // NULL where it is not
} tv_block;

// tv_loader opens the Vulkan loader and returns vkGetInstanceProcAddr, NULL where there is none.
void *tv_loader(const char *path);

// tv_describe fills in what the physical device has. family is the queue family to be used.
void tv_describe(void *gipa, void *instance, void *physical, uint32_t family, tv_features *f);

// tv_heaps asks for memory heaps and types, and how much of each heap may be used now.
void tv_heaps(void *gipa, void *instance, void *physical, int budget, tv_memory *m);

// tv_chain makes the chain of features for device creation that enables what f has; tv_chain_free frees it.
void *tv_chain(const tv_features *f);
void tv_chain_free(void *chain);

// tv_open prepares recording on a device that the binding made. A wait asks again and again for spin nanoseconds before it
// sleeps. cache is the contents of a pipeline cache, or NULL.
// computes tells that long lists come again: one that was recorded from the same words is not recorded anew.
// Where queues of two families are used, buffers are shared by both: families names them.
tv_device *tv_open(void *gipa, void *instance, void *device, void *queue, uint32_t family, const uint32_t *families, uint32_t push, uint32_t spin, int computes, const void *cache, size_t cache_size);
void tv_close(tv_device *d);

// The results of these are VkResult: 0 is success.
int tv_allocate(tv_device *d, uint64_t size, uint32_t type, int map, tv_block *b);
int tv_import(tv_device *d, void *host, uint64_t size, uint32_t *type_bits, const tv_memory *m, tv_block *b);
void tv_release(tv_device *d, const tv_block *b);
int tv_pipeline(tv_device *d, const uint32_t *code, size_t bytes, const uint32_t *spec, uint32_t specs, uint64_t *pipeline);
size_t tv_cache_size(tv_device *d);
int tv_cache_data(tv_device *d, void *data, size_t *size);

// Commands are lists of 32-bit words; numbers of 64 bits lie low half first.
enum {
	TV_DISPATCH = 1, // pipeline (2), groups x, y, z, words of constants, constants
	TV_BARRIER = 2,  // all that was written is seen by all that comes
	TV_COPY = 3,     // from buffer (2), to buffer (2), from offset (2), to offset (2), bytes (2)
	TV_FILL = 4,     // buffer (2), offset (2), bytes (2), value
	TV_STAMP = 5,    // number of the timestamp
	TV_HOLD = 6      // what follows waits for tv_resume; one a list
};
enum { TV_STAMPS = 4096 };

// tv_submit records the list and submits it; host says that the host will read what it wrote. The commands run after all those
// that were submitted before.
int tv_submit(tv_device *d, const uint32_t *list, size_t words, int host);
// tv_resume lets the device go on behind the TV_HOLD of the latest list.
int tv_resume(tv_device *d);
// tv_replayed counts the lists that were not recorded anew.
uint64_t tv_replayed(tv_device *d);
// tv_wait waits until all that was submitted has run.
int tv_wait(tv_device *d);
// tv_stamps reads timestamps, in ticks of the device.
int tv_stamps(tv_device *d, uint32_t first, uint32_t count, uint64_t *ticks);

#endif
