//go:build cgo && !novulkan

#define VK_NO_PROTOTYPES
#include "khronos/vulkan/vulkan_core.h"
#include "ext.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#define IN_FLIGHT 8

struct tv_device {
	VkInstance instance;
	VkDevice device;
	VkQueue queue;
	VkCommandPool pool;
	VkPipelineLayout layout;
	VkPipelineCache cache;
	VkQueryPool queries;
	uint32_t push, spin;
	VkCommandBuffer buffers[2 * IN_FLIGHT]; // each with one for what waits for the host
	VkSemaphore gate;
	uint64_t passed; // value of the gate that the latest hold waits for
	uint32_t families[2];
	VkPipelineStageFlags stages; // what the queue does: one for transfers alone has no shaders
	VkFence fences[IN_FLIGHT];
	int used[IN_FLIGHT]; // submitted since the last wait
	// What buffers hold, as long as it may be submitted once more: the list they were recorded from.
	struct { uint32_t *list; size_t words, room; int host; } held[IN_FLIGHT];
	uint64_t replayed;
	int stale; // a buffer went: what is held may be of no use
	int next, last, pending;
	int lost, queue_computes;
#define DEVICE_FUNCTIONS(X) \
	X(CreateCommandPool) X(DestroyCommandPool) X(AllocateCommandBuffers) X(CreateFence) X(DestroyFence) X(GetFenceStatus) X(WaitForFences) \
	X(ResetFences) X(BeginCommandBuffer) X(EndCommandBuffer) X(QueueSubmit) X(CmdBindPipeline) X(CmdPushConstants) X(CmdDispatch) \
	X(CmdPipelineBarrier) X(CmdCopyBuffer) X(CmdFillBuffer) X(CmdWriteTimestamp) X(CmdResetQueryPool) X(CreateQueryPool) X(DestroyQueryPool) \
	X(GetQueryPoolResults) X(CreatePipelineLayout) X(DestroyPipelineLayout) X(CreatePipelineCache) X(DestroyPipelineCache) \
	X(GetPipelineCacheData) X(CreateShaderModule) X(DestroyShaderModule) X(CreateComputePipelines) X(DestroyPipeline) X(AllocateMemory) \
	X(FreeMemory) X(MapMemory) X(CreateBuffer) X(DestroyBuffer) X(BindBufferMemory) X(GetBufferMemoryRequirements) X(GetBufferDeviceAddress) \
	X(DeviceWaitIdle) X(CreateSemaphore) X(DestroySemaphore) X(SignalSemaphore)
#define X(name) PFN_vk##name name;
	DEVICE_FUNCTIONS(X)
#undef X
	PFN_vkGetMemoryHostPointerPropertiesEXT GetMemoryHostPointerPropertiesEXT;
	VkPipeline *pipelines;
	size_t pipeline_count, pipeline_room;
};

void *tv_loader(const char *path) {
#ifdef _WIN32
	HMODULE h = LoadLibraryA(path);
	return h ? (void *)GetProcAddress(h, "vkGetInstanceProcAddr") : NULL;
#else
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return h ? dlsym(h, "vkGetInstanceProcAddr") : NULL;
#endif
}

static PFN_vkVoidFunction of_instance(void *gipa, void *instance, const char *name) {
	return ((PFN_vkGetInstanceProcAddr)gipa)((VkInstance)instance, name);
}

static int has(const VkExtensionProperties *p, uint32_t n, const char *name) {
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(p[i].extensionName, name))
			return 1;
	return 0;
}

void tv_describe(void *gipa, void *instance, void *physical, uint32_t family, tv_features *f) {
	VkPhysicalDevice p = (VkPhysicalDevice)physical;
	PFN_vkGetPhysicalDeviceProperties2 props2 = (PFN_vkGetPhysicalDeviceProperties2)of_instance(gipa, instance, "vkGetPhysicalDeviceProperties2");
	PFN_vkGetPhysicalDeviceFeatures2 features2 = (PFN_vkGetPhysicalDeviceFeatures2)of_instance(gipa, instance, "vkGetPhysicalDeviceFeatures2");
	PFN_vkGetPhysicalDeviceProperties props = (PFN_vkGetPhysicalDeviceProperties)of_instance(gipa, instance, "vkGetPhysicalDeviceProperties");
	PFN_vkEnumerateDeviceExtensionProperties extensions =
		(PFN_vkEnumerateDeviceExtensionProperties)of_instance(gipa, instance, "vkEnumerateDeviceExtensionProperties");
	PFN_vkGetPhysicalDeviceQueueFamilyProperties families =
		(PFN_vkGetPhysicalDeviceQueueFamilyProperties)of_instance(gipa, instance, "vkGetPhysicalDeviceQueueFamilyProperties");
	memset(f, 0, sizeof *f);
	VkPhysicalDeviceProperties plain;
	props(p, &plain);
	f->api = plain.apiVersion;
	f->device_type = plain.deviceType;
	f->vendor = plain.vendorID;
	f->device = plain.deviceID;
	memcpy(f->uuid, plain.pipelineCacheUUID, 16);
	strncpy(f->name, plain.deviceName, sizeof f->name - 1);
	f->max_push = plain.limits.maxPushConstantsSize;
	f->max_shared = plain.limits.maxComputeSharedMemorySize;
	f->max_invocations = plain.limits.maxComputeWorkGroupInvocations;
	f->max_groups_x = plain.limits.maxComputeWorkGroupCount[0];
	f->max_groups_y = plain.limits.maxComputeWorkGroupCount[1];
	f->max_groups_z = plain.limits.maxComputeWorkGroupCount[2];
	f->timestamp_period = plain.limits.timestampPeriod;
	uint32_t n = 0;
	families(p, &n, NULL);
	VkQueueFamilyProperties *q = calloc(n ? n : 1, sizeof *q);
	families(p, &n, q);
	if (family < n)
		f->timestamp_bits = q[family].timestampValidBits;
	free(q);
	if (f->api < VK_API_VERSION_1_2 || !props2 || !features2)
		return;
	n = 0;
	extensions(p, NULL, &n, NULL);
	VkExtensionProperties *x = calloc(n ? n : 1, sizeof *x);
	extensions(p, NULL, &n, x);
	f->memory_budget = has(x, n, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
	f->host_import = has(x, n, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
	f->portability = has(x, n, "VK_KHR_portability_subset");
	int dot_extension = has(x, n, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
	free(x);

	VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
	VkPhysicalDeviceVulkan13Properties p13 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES, .pNext = f->host_import ? &host : NULL};
	VkPhysicalDeviceVulkan12Properties p12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = f->host_import ? &host : NULL};
	VkPhysicalDeviceVulkan11Properties p11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &p12};
	if (f->api >= VK_API_VERSION_1_3)
		p12.pNext = &p13;
	VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &p11};
	props2(p, &all);
	f->subgroup = p11.subgroupSize;
	f->max_allocation = p11.maxMemoryAllocationSize;
	f->max_buffer = f->api >= VK_API_VERSION_1_3 ? p13.maxBufferSize : p11.maxMemoryAllocationSize;
	f->import_alignment = host.minImportedHostPointerAlignment;
	if (p12.denormBehaviorIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE)
		f->denorms = p12.shaderDenormPreserveFloat32;
	if (p12.roundingModeIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE)
		f->nearest = p12.shaderRoundingModeRTEFloat32;
	f->specials = p12.shaderSignedZeroInfNanPreserveFloat32;
	f->dot_accelerated = p13.integerDotProduct4x8BitPackedSignedAccelerated;
	strncpy(f->driver, p12.driverName, sizeof f->driver - 1);
	if (p12.driverInfo[0] && strlen(f->driver) + strlen(p12.driverInfo) + 2 < sizeof f->driver) {
		strcat(f->driver, " ");
		strcat(f->driver, p12.driverInfo);
	}

	VkPhysicalDeviceVulkan13Features f13 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
	VkPhysicalDeviceVulkan12Features f12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
	VkPhysicalDeviceVulkan11Features f11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
	if (f->api >= VK_API_VERSION_1_3)
		f12.pNext = &f13;
	VkPhysicalDeviceFeatures2 fs = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &f11};
	features2(p, &fs);
	f->address = f12.bufferDeviceAddress;
	f->int64 = fs.features.shaderInt64;
	f->int16 = fs.features.shaderInt16;
	f->int8 = f12.shaderInt8;
	f->float16 = f12.shaderFloat16;
	f->float64 = fs.features.shaderFloat64;
	f->storage8 = f12.storageBuffer8BitAccess;
	f->storage16 = f11.storageBuffer16BitAccess;
	f->timeline = f12.timelineSemaphore;
	(void)dot_extension; // before 1.3 the plain path is taken
	f->dot_product = f13.shaderIntegerDotProduct;
}

void tv_heaps(void *gipa, void *instance, void *physical, int budget, tv_memory *m) {
	PFN_vkGetPhysicalDeviceMemoryProperties2 f = (PFN_vkGetPhysicalDeviceMemoryProperties2)of_instance(gipa, instance, "vkGetPhysicalDeviceMemoryProperties2");
	VkPhysicalDeviceMemoryBudgetPropertiesEXT b = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
	VkPhysicalDeviceMemoryProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = budget ? &b : NULL};
	memset(m, 0, sizeof *m);
	if (!f)
		return;
	f((VkPhysicalDevice)physical, &p);
	m->heaps = p.memoryProperties.memoryHeapCount;
	m->types = p.memoryProperties.memoryTypeCount;
	for (uint32_t i = 0; i < m->heaps && i < 16; i++) {
		m->heap[i].size = p.memoryProperties.memoryHeaps[i].size;
		m->heap[i].device_local = (p.memoryProperties.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0;
		m->heap[i].budget = budget ? b.heapBudget[i] - (b.heapUsage[i] < b.heapBudget[i] ? b.heapUsage[i] : b.heapBudget[i]) : 0;
	}
	for (uint32_t i = 0; i < m->types && i < 32; i++) {
		VkMemoryPropertyFlags g = p.memoryProperties.memoryTypes[i].propertyFlags;
		m->type[i].heap = p.memoryProperties.memoryTypes[i].heapIndex;
		m->type[i].device_local = (g & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) != 0;
		m->type[i].host_visible = (g & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0;
		m->type[i].coherent = (g & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0;
		m->type[i].cached = (g & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
		if (g & (VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD))
			memset(&m->type[i], 0, sizeof m->type[i]); // of no use here
	}
}

typedef struct {
	VkPhysicalDeviceFeatures2 all;
	VkPhysicalDeviceVulkan11Features f11;
	VkPhysicalDeviceVulkan12Features f12;
	VkPhysicalDeviceVulkan13Features f13;
} chain;

void *tv_chain(const tv_features *f) {
	chain *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
	c->f11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
	c->f12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
	c->f13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
	c->all.pNext = &c->f11;
	c->f11.pNext = &c->f12;
	if (f->api >= VK_API_VERSION_1_3)
		c->f12.pNext = &c->f13;
	c->all.features.shaderInt64 = f->int64;
	c->all.features.shaderInt16 = f->int16;
	c->all.features.shaderFloat64 = f->float64;
	c->f11.storageBuffer16BitAccess = f->storage16;
	c->f12.storageBuffer8BitAccess = f->storage8;
	c->f12.shaderInt8 = f->int8;
	c->f12.bufferDeviceAddress = f->address;
	c->f12.timelineSemaphore = f->timeline;
	c->f13.shaderIntegerDotProduct = f->dot_product;
	return c;
}

void tv_chain_free(void *c) { free(c); }

tv_device *tv_open(void *gipa, void *instance, void *device, void *queue, uint32_t family, const uint32_t *families, uint32_t push, uint32_t spin, int computes, const void *cache, size_t cache_size) {
	tv_device *d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	d->instance = (VkInstance)instance;
	d->device = (VkDevice)device;
	d->queue = (VkQueue)queue;
	memcpy(d->families, families, sizeof d->families);
	d->stages = VK_PIPELINE_STAGE_TRANSFER_BIT | (family == families[0] ? VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT : 0);
	d->push = push;
	d->queue_computes = computes;
	d->spin = spin;
	PFN_vkGetDeviceProcAddr get = (PFN_vkGetDeviceProcAddr)of_instance(gipa, instance, "vkGetDeviceProcAddr");
#define X(name) \
	d->name = (PFN_vk##name)get(d->device, "vk" #name); \
	if (!d->name) { free(d); return NULL; }
	DEVICE_FUNCTIONS(X)
#undef X
	d->GetMemoryHostPointerPropertiesEXT = (PFN_vkGetMemoryHostPointerPropertiesEXT)get(d->device, "vkGetMemoryHostPointerPropertiesEXT");
	VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, .queueFamilyIndex = family};
	VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .offset = 0, .size = push};
	VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1, .pPushConstantRanges = &range};
	VkPipelineCacheCreateInfo pc = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, .initialDataSize = cache_size, .pInitialData = cache};
	VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = TV_STAMPS};
	VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
	if (d->CreateCommandPool(d->device, &pool, NULL, &d->pool) || d->CreatePipelineLayout(d->device, &layout, NULL, &d->layout))
		goto fail;
	if (d->CreatePipelineCache(d->device, &pc, NULL, &d->cache)) {
		pc.initialDataSize = 0; // what was saved is of no use: begin anew
		if (d->CreatePipelineCache(d->device, &pc, NULL, &d->cache))
			goto fail;
	}
	if (d->CreateQueryPool(d->device, &queries, NULL, &d->queries))
		goto fail;
	VkCommandBufferAllocateInfo buffers = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = d->pool, .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 2 * IN_FLIGHT};
	VkSemaphoreTypeCreateInfo timeline = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
	VkSemaphoreCreateInfo gate = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &timeline};
	if (d->CreateSemaphore(d->device, &gate, NULL, &d->gate))
		goto fail;
	if (d->AllocateCommandBuffers(d->device, &buffers, d->buffers))
		goto fail;
	for (int i = 0; i < IN_FLIGHT; i++)
		if (d->CreateFence(d->device, &fence, NULL, &d->fences[i]))
			goto fail;
	return d;
fail:
	tv_close(d);
	return NULL;
}

void tv_close(tv_device *d) {
	d->DeviceWaitIdle(d->device);
	if (d->gate)
		d->DestroySemaphore(d->device, d->gate, NULL);
	for (int i = 0; i < IN_FLIGHT; i++)
		if (d->fences[i])
			d->DestroyFence(d->device, d->fences[i], NULL);
	for (int i = 0; i < IN_FLIGHT; i++)
		free(d->held[i].list);
	for (size_t i = 0; i < d->pipeline_count; i++)
		d->DestroyPipeline(d->device, d->pipelines[i], NULL);
	free(d->pipelines);
	if (d->queries)
		d->DestroyQueryPool(d->device, d->queries, NULL);
	if (d->cache)
		d->DestroyPipelineCache(d->device, d->cache, NULL);
	if (d->layout)
		d->DestroyPipelineLayout(d->device, d->layout, NULL);
	if (d->pool)
		d->DestroyCommandPool(d->device, d->pool, NULL);
	free(d);
}

// cover makes a buffer over all of an allocation that is to be made by make.
static int cover(tv_device *d, uint64_t size, uint32_t type, const void *next, int map, int external, tv_block *b) {
	memset(b, 0, sizeof *b);
	VkExternalMemoryBufferCreateInfo ext = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
	VkBufferCreateInfo bi = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
		.pNext = external ? &ext : NULL,
		.size = size,
		.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
	};
	if (d->families[0] != d->families[1]) {
		bi.sharingMode = VK_SHARING_MODE_CONCURRENT;
		bi.queueFamilyIndexCount = 2;
		bi.pQueueFamilyIndices = d->families;
	}
	VkBuffer buffer;
	VkResult r = d->CreateBuffer(d->device, &bi, NULL, &buffer);
	if (r)
		return r;
	VkMemoryRequirements need;
	d->GetBufferMemoryRequirements(d->device, buffer, &need);
	if (!(need.memoryTypeBits >> type & 1) || (external && need.size > size)) {
		d->DestroyBuffer(d->device, buffer, NULL);
		return VK_ERROR_FEATURE_NOT_PRESENT;
	}
	VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, .pNext = next, .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
	VkMemoryAllocateInfo mi = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags, .allocationSize = external ? size : need.size, .memoryTypeIndex = type};
	VkDeviceMemory memory = VK_NULL_HANDLE;
	r = d->AllocateMemory(d->device, &mi, NULL, &memory);
	if (!r)
		r = d->BindBufferMemory(d->device, buffer, memory, 0);
	void *mapped = NULL;
	if (!r && map)
		r = d->MapMemory(d->device, memory, 0, VK_WHOLE_SIZE, 0, &mapped);
	if (r) {
		d->DestroyBuffer(d->device, buffer, NULL);
		if (memory)
			d->FreeMemory(d->device, memory, NULL);
		return r;
	}
	VkBufferDeviceAddressInfo ai = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = buffer};
	b->address = d->GetBufferDeviceAddress(d->device, &ai);
	b->buffer = (uint64_t)(uintptr_t)buffer;
	b->memory = (uint64_t)(uintptr_t)memory;
	b->mapped = mapped;
	return 0;
}

int tv_allocate(tv_device *d, uint64_t size, uint32_t type, int map, tv_block *b) { return cover(d, size, type, NULL, map, 0, b); }

int tv_import(tv_device *d, void *host, uint64_t size, uint32_t *type_bits, const tv_memory *m, tv_block *b) {
	if (!d->GetMemoryHostPointerPropertiesEXT)
		return VK_ERROR_EXTENSION_NOT_PRESENT;
	VkMemoryHostPointerPropertiesEXT p = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
	VkResult r = d->GetMemoryHostPointerPropertiesEXT(d->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, host, &p);
	if (r)
		return r;
	*type_bits = p.memoryTypeBits;
	VkImportMemoryHostPointerInfoEXT import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT, .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, .pHostPointer = host};
	for (uint32_t i = 0; i < m->types; i++)
		if (p.memoryTypeBits >> i & 1 && m->type[i].host_visible) {
			r = cover(d, size, i, &import, 0, 1, b);
			if (!r)
				return 0;
		}
	return r ? r : VK_ERROR_FEATURE_NOT_PRESENT;
}

void tv_release(tv_device *d, const tv_block *b) {
	__atomic_store_n(&d->stale, 1, __ATOMIC_RELEASE); // recorded lists may name the buffer
	d->DestroyBuffer(d->device, (VkBuffer)(uintptr_t)b->buffer, NULL);
	d->FreeMemory(d->device, (VkDeviceMemory)(uintptr_t)b->memory, NULL);
}

int tv_pipeline(tv_device *d, const uint32_t *code, size_t bytes, const uint32_t *spec, uint32_t specs, uint64_t *pipeline) {
	VkShaderModuleCreateInfo mi = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes, .pCode = code};
	VkShaderModule module;
	VkResult r = d->CreateShaderModule(d->device, &mi, NULL, &module);
	if (r)
		return r;
	VkSpecializationMapEntry entries[16];
	for (uint32_t i = 0; i < specs && i < 16; i++)
		entries[i] = (VkSpecializationMapEntry){.constantID = i, .offset = 4 * i, .size = 4};
	VkSpecializationInfo si = {.mapEntryCount = specs, .pMapEntries = entries, .dataSize = 4 * specs, .pData = spec};
	VkComputePipelineCreateInfo ci = {
		.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
		.stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main", .pSpecializationInfo = &si},
		.layout = d->layout,
	};
	VkPipeline p;
	r = d->CreateComputePipelines(d->device, d->cache, 1, &ci, NULL, &p);
	d->DestroyShaderModule(d->device, module, NULL);
	if (r)
		return r;
	if (d->pipeline_count == d->pipeline_room) {
		size_t room = d->pipeline_room ? 2 * d->pipeline_room : 64;
		VkPipeline *all = realloc(d->pipelines, room * sizeof *all);
		if (!all) {
			d->DestroyPipeline(d->device, p, NULL);
			return VK_ERROR_OUT_OF_HOST_MEMORY;
		}
		d->pipelines = all;
		d->pipeline_room = room;
	}
	d->pipelines[d->pipeline_count++] = p;
	*pipeline = (uint64_t)(uintptr_t)p;
	return 0;
}

size_t tv_cache_size(tv_device *d) {
	size_t n = 0;
	if (d->GetPipelineCacheData(d->device, d->cache, &n, NULL))
		return 0;
	return n;
}

int tv_cache_data(tv_device *d, void *data, size_t *size) { return d->GetPipelineCacheData(d->device, d->cache, size, data); }

static uint64_t wide(const uint32_t *w) { return w[0] | (uint64_t)w[1] << 32; }


// replay is the buffer that was recorded from the same list and has run, or -1.
static int replay(tv_device *d, const uint32_t *list, size_t words, int host) {
	if (__atomic_exchange_n(&d->stale, 0, __ATOMIC_ACQ_REL))
		for (int i = 0; i < IN_FLIGHT; i++)
			d->held[i].words = 0;
	for (int i = 0; i < IN_FLIGHT; i++)
		if (d->held[i].words == words && words && d->held[i].host == host && !d->used[i] && !memcmp(d->held[i].list, list, 4 * words))
			return i;
	return -1;
}

// hold notes what buffer at is recorded from, where that is worth it. Lists with a hold, which have two buffers, are not noted.
static void hold(tv_device *d, int at, const uint32_t *list, size_t words, int host) {
	d->held[at].words = 0;
	if (d->held[at].room < words) {
		uint32_t *more = realloc(d->held[at].list, 4 * words);
		if (!more)
			return;
		d->held[at].list = more;
		d->held[at].room = words;
	}
	memcpy(d->held[at].list, list, 4 * words);
	d->held[at].words = words;
	d->held[at].host = host;
}

// Shorter lists are recorded each time.
enum { WORTH_HOLDING = 1024 };

int tv_submit(tv_device *d, const uint32_t *list, size_t words, int host) {
	if (d->lost)
		return VK_ERROR_DEVICE_LOST;
	int holds = d->queue_computes && words >= WORTH_HOLDING;
	int again = holds ? replay(d, list, words, host) : -1;
	int at = again >= 0 ? again : d->next;
	VkResult r;
	if (d->used[at]) {
		r = d->WaitForFences(d->device, 1, &d->fences[at], VK_TRUE, UINT64_MAX);
		if (r)
			goto failed;
		d->ResetFences(d->device, 1, &d->fences[at]);
		d->used[at] = 0;
	}
	VkCommandBuffer c = d->buffers[2 * at], front = c;
	if (again >= 0) {
		d->replayed++;
		goto recorded;
	}
	d->held[at].words = 0;
	VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = holds ? 0 : VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
	r = d->BeginCommandBuffer(c, &begin);
	if (r)
		goto failed;
	// Work of earlier lists comes first, and so does what the host wrote.
	VkMemoryBarrier first = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT, .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT};
	d->CmdPipelineBarrier(c, d->stages | VK_PIPELINE_STAGE_HOST_BIT, d->stages, 0, 1, &first, 0, NULL, 0, NULL);
	VkMemoryBarrier between = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
		.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
		.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
	};
	VkPipeline bound = VK_NULL_HANDLE;
	for (size_t i = 0; i < words;) {
		const uint32_t *w = list + i + 1;
		switch (list[i]) {
		case TV_DISPATCH: {
			VkPipeline p = (VkPipeline)(uintptr_t)wide(w);
			if (p != bound)
				d->CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, p);
			bound = p;
			if (w[5])
				d->CmdPushConstants(c, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 4 * w[5], w + 6);
			d->CmdDispatch(c, w[2], w[3], w[4]);
			i += 7 + w[5];
			break;
		}
		case TV_BARRIER:
			d->CmdPipelineBarrier(c, d->stages, d->stages, 0, 1, &between, 0, NULL, 0, NULL);
			i++;
			break;
		case TV_COPY: {
			VkBufferCopy copy = {.srcOffset = wide(w + 4), .dstOffset = wide(w + 6), .size = wide(w + 8)};
			d->CmdCopyBuffer(c, (VkBuffer)(uintptr_t)wide(w), (VkBuffer)(uintptr_t)wide(w + 2), 1, &copy);
			i += 11;
			break;
		}
		case TV_FILL:
			d->CmdFillBuffer(c, (VkBuffer)(uintptr_t)wide(w), wide(w + 2), wide(w + 4), w[6]);
			i += 8;
			break;
		case TV_STAMP:
			d->CmdResetQueryPool(c, d->queries, w[0], 1);
			d->CmdWriteTimestamp(c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, d->queries, w[0]);
			i += 2;
			break;
		case TV_HOLD:
			if (c != front) {
				d->EndCommandBuffer(c);
				return VK_ERROR_UNKNOWN;
			}
			r = d->EndCommandBuffer(c);
			c = d->buffers[2 * at + 1];
			if (!r)
				r = d->BeginCommandBuffer(c, &begin);
			if (r)
				goto failed;
			d->CmdPipelineBarrier(c, d->stages | VK_PIPELINE_STAGE_HOST_BIT, d->stages, 0, 1, &first, 0, NULL, 0, NULL);
			bound = VK_NULL_HANDLE;
			i++;
			break;
		default:
			d->EndCommandBuffer(c);
			return VK_ERROR_UNKNOWN;
		}
	}
	if (host) {
		VkMemoryBarrier last = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
		d->CmdPipelineBarrier(c, d->stages, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &last, 0, NULL, 0, NULL);
	}
	r = d->EndCommandBuffer(c);
	if (r)
		goto failed;
	if (holds && c == front)
		hold(d, at, list, words, host);
recorded:;
	uint64_t value = d->passed + 1;
	VkTimelineSemaphoreSubmitInfo when = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, .waitSemaphoreValueCount = 1, .pWaitSemaphoreValues = &value};
	VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
	VkSubmitInfo si[2] = {
		{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &front},
		{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &when, .waitSemaphoreCount = 1, .pWaitSemaphores = &d->gate, .pWaitDstStageMask = &all, .commandBufferCount = 1, .pCommandBuffers = &c},
	};
	r = d->QueueSubmit(d->queue, c == front ? 1 : 2, si, d->fences[at]);
	if (r)
		goto failed;
	if (c != front)
		d->passed = value;
	d->used[at] = 1;
	d->pending = 1;
	d->last = at;
	if (again < 0)
		d->next = (at + 1) % IN_FLIGHT;
	return 0;
failed:
	if (r == VK_ERROR_DEVICE_LOST)
		d->lost = 1;
	return r;
}

uint64_t tv_replayed(tv_device *d) { return d->replayed; }

int tv_resume(tv_device *d) {
	VkSemaphoreSignalInfo si = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = d->gate, .value = d->passed};
	VkResult r = d->SignalSemaphore(d->device, &si);
	if (r == VK_ERROR_DEVICE_LOST)
		d->lost = 1;
	return r;
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int tv_wait(tv_device *d) {
	if (d->lost)
		return VK_ERROR_DEVICE_LOST;
	if (!d->pending)
		return 0;
	int last = d->last;
	VkResult r = VK_NOT_READY;
	for (int64_t end = now() + d->spin; r == VK_NOT_READY && now() < end;)
		r = d->GetFenceStatus(d->device, d->fences[last]);
	if (r == VK_NOT_READY)
		r = d->WaitForFences(d->device, 1, &d->fences[last], VK_TRUE, UINT64_MAX);
	if (r) {
		if (r == VK_ERROR_DEVICE_LOST)
			d->lost = 1;
		return r;
	}
	// A fence covers all that was submitted to the queue before.
	for (int i = 0; i < IN_FLIGHT; i++)
		if (d->used[i]) {
			r = d->WaitForFences(d->device, 1, &d->fences[i], VK_TRUE, UINT64_MAX);
			if (r)
				return r;
			d->ResetFences(d->device, 1, &d->fences[i]);
			d->used[i] = 0;
		}
	d->pending = 0;
	return 0;
}

int tv_stamps(tv_device *d, uint32_t first, uint32_t count, uint64_t *ticks) {
	return d->GetQueryPoolResults(d->device, d->queries, first, count, 8 * (size_t)count, ticks, 8, VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
}
