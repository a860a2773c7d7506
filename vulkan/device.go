//go:build cgo && !novulkan

package vulkan

/*
#cgo CFLAGS: -I${SRCDIR}/khronos
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "ext.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	vk "github.com/vulkan-go/vulkan"

	"terrace/internal/fault"
)

// setUp guards what the binding keeps in variables of its own, and the collector's settings.
var setUp sync.Mutex

// loader is vkGetInstanceProcAddr, once it has been found.
var loader unsafe.Pointer

// held runs f with the collector switched off. The binding hands memory to C whose release hangs on finalizers that may run
// before the call has returned.
func held(f func() error) error {
	setUp.Lock()
	defer setUp.Unlock()
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(math.MaxInt64)
	defer func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}()
	return f()
}

// loaders are the names under which systems keep the Vulkan loader.
func loaders() []string {
	switch runtime.GOOS {
	case "windows":
		return []string{"vulkan-1.dll"}
	case "darwin":
		return []string{"libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"}
	}
	return []string{"libvulkan.so.1", "libvulkan.so"}
}

// load finds the Vulkan loader. Under setUp.
func load() error {
	if loader != nil {
		return nil
	}
	for _, name := range loaders() {
		s := C.CString(name)
		p := C.tv_loader(s)
		C.free(unsafe.Pointer(s))
		if p != nil {
			vk.SetGetInstanceProcAddr(p)
			if err := vk.Init(); err != nil {
				return fmt.Errorf("vulkan: %s: %w", name, err)
			}
			loader = p
			return nil
		}
	}
	return fmt.Errorf("vulkan: %w: there is no %s on this machine", ErrUnavailable, strings.Join(loaders(), " or "))
}

const (
	api13             = 1<<22 | 3<<12
	validationLayer   = "VK_LAYER_KHRONOS_validation"
	portabilityFlag   = 1
	portabilityListed = "VK_KHR_portability_enumeration"
)

// anchor is an instance that stays: without any the loader unloads the driver, and a thread that ends later, of which the driver had
// taken note, would run code that is no longer there.
var anchor vk.Instance

// anchored makes sure that it is there. Under setUp.
func anchored() (err error) {
	if anchor == nil {
		anchor, err = instance(false)
	}
	return err
}

// instance makes an instance. Under setUp.
func instance(validate bool) (vk.Instance, error) {
	if err := load(); err != nil {
		return nil, err
	}
	app := vk.ApplicationInfo{SType: vk.StructureTypeApplicationInfo, PApplicationName: "terrace\x00", PEngineName: "terrace\x00", ApiVersion: api13}
	info := vk.InstanceCreateInfo{SType: vk.StructureTypeInstanceCreateInfo, PApplicationInfo: &app}
	if validate {
		info.PpEnabledLayerNames = []string{validationLayer + "\x00"}
		info.EnabledLayerCount = 1
	}
	if runtime.GOOS == "darwin" {
		info.Flags = portabilityFlag
		info.PpEnabledExtensionNames = []string{portabilityListed + "\x00"}
		info.EnabledExtensionCount = 1
	}
	var in vk.Instance
	if r := vk.CreateInstance(&info, nil, &in); r != vk.Success {
		if validate && r == vk.ErrorLayerNotPresent {
			return nil, fmt.Errorf("vulkan: the layer %s is not installed", validationLayer)
		}
		return nil, fmt.Errorf("vulkan: %w: no instance (%s)", ErrUnavailable, result(int(r)))
	}
	if err := vk.InitInstance(in); err != nil {
		vk.DestroyInstance(in, nil)
		return nil, fmt.Errorf("vulkan: %w", err)
	}
	return in, nil
}

// candidate is a physical device.
type candidate struct {
	handle vk.PhysicalDevice
	family uint32 // a queue family that computes
	moves  uint32 // one that does nothing but copy; family where there is none
	f      C.tv_features
	memory C.tv_memory
	info   DeviceInfo
}

// candidates lists the physical devices. Under setUp.
func candidates(in vk.Instance) ([]candidate, error) {
	var n uint32
	if r := vk.EnumeratePhysicalDevices(in, &n, nil); r != vk.Success {
		return nil, fmt.Errorf("vulkan: the devices: %s", result(int(r)))
	}
	if n == 0 {
		return nil, nil
	}
	handles := make([]vk.PhysicalDevice, n)
	if r := vk.EnumeratePhysicalDevices(in, &n, handles); r != vk.Success && r != vk.Incomplete {
		return nil, fmt.Errorf("vulkan: the devices: %s", result(int(r)))
	}
	out := make([]candidate, 0, n)
	for i, h := range handles[:n] {
		c := candidate{handle: h, family: math.MaxUint32, moves: math.MaxUint32}
		var families uint32
		vk.GetPhysicalDeviceQueueFamilyProperties(h, &families, nil)
		list := make([]vk.QueueFamilyProperties, families)
		vk.GetPhysicalDeviceQueueFamilyProperties(h, &families, list)
		for k := range list {
			list[k].Deref()
			if list[k].QueueFlags&vk.QueueFlags(vk.QueueComputeBit) != 0 && c.family == math.MaxUint32 {
				c.family = uint32(k)
			}
			const work = vk.QueueFlags(vk.QueueComputeBit | vk.QueueGraphicsBit | vk.QueueTransferBit)
			if list[k].QueueFlags&work == vk.QueueFlags(vk.QueueTransferBit) && c.moves == math.MaxUint32 {
				c.moves = uint32(k)
			}
		}
		if c.moves == math.MaxUint32 {
			c.moves = c.family
		}
		C.tv_describe(loader, unsafe.Pointer(in), unsafe.Pointer(h), C.uint32_t(c.family), &c.f)
		C.tv_heaps(loader, unsafe.Pointer(in), unsafe.Pointer(h), C.int(c.f.memory_budget), &c.memory)
		c.describe(i + 1)
		out = append(out, c)
	}
	return out, nil
}

// kinds are the values of VkPhysicalDeviceType.
var kinds = [...]Kind{OtherKind, Integrated, Discrete, Virtual, Software}

func (c *candidate) describe(number int) {
	f := &c.f
	c.info = DeviceInfo{Number: number, Name: C.GoString(&f.name[0]), Driver: C.GoString(&f.driver[0])}
	c.info.API = fmt.Sprintf("%d.%d.%d", f.api>>22, f.api>>12&0x3ff, f.api&0xfff)
	if int(f.device_type) < len(kinds) {
		c.info.Kind = kinds[f.device_type]
	}
	for i := range c.memory.heaps {
		if h := &c.memory.heap[i]; h.device_local != 0 {
			c.info.Memory += int64(h.size)
			c.info.Free += int64(h.budget)
		}
	}
	if c.moves != c.family {
		c.f.transfers = 1
	}
	c.judge(nil)
}

// optional are the features that change paths, and what is done without them.
var optional = []struct {
	name    string
	field   func(f *C.tv_features) *C.uint32_t
	without string
}{
	{"float64", func(f *C.tv_features) *C.uint32_t { return &f.float64 }, "norms add up pairs of float32"},
	{"subnormals", func(f *C.tv_features) *C.uint32_t { return &f.denorms }, "numbers below 1.2e-38 may become zero"},
	{"dot product", func(f *C.tv_features) *C.uint32_t { return &f.dot_product }, "bytes are multiplied one by one"},
	{"memory budget", func(f *C.tv_features) *C.uint32_t { return &f.memory_budget }, "memory is taken as the heap's size less a tenth"},
	{"host import", func(f *C.tv_features) *C.uint32_t { return &f.host_import }, "host memory is copied"},
	{"transfer queue", func(f *C.tv_features) *C.uint32_t { return &f.transfers }, "copies take turns with computing"},
}

// judge fills in Refused and Lacks, without the features masked.
func (c *candidate) judge(mask []string) {
	f := &c.f
	for _, o := range optional {
		if slices.Contains(mask, o.name) {
			*o.field(f) = 0
		}
	}
	c.info.Lacks = nil
	for _, o := range optional {
		if *o.field(f) == 0 {
			c.info.Lacks = append(c.info.Lacks, o.name+": "+o.without)
		}
	}
	var missing []string
	for _, need := range []struct {
		name string
		has  bool
	}{
		{"Vulkan 1.2", f.api >= 1<<22|2<<12}, {"a compute queue", c.family != math.MaxUint32}, {"buffer addresses", f.address != 0},
		{"64-bit integers", f.int64 != 0}, {"16-bit integers", f.int16 != 0}, {"8-bit integers", f.int8 != 0},
		{"16-bit storage", f.storage16 != 0}, {"8-bit storage", f.storage8 != 0},
	} {
		if !need.has || slices.Contains(mask, need.name) {
			missing = append(missing, need.name)
		}
	}
	c.info.Refused = ""
	if len(missing) > 0 {
		c.info.Refused = "it lacks " + strings.Join(missing, ", ")
	}
}

// Devices lists the machine's devices. Without a loader or without any it answers ErrUnavailable.
func Devices() (out []DeviceInfo, err error) {
	err = held(func() error {
		if err := anchored(); err != nil {
			return err
		}
		in, err := instance(false)
		if err != nil {
			return err
		}
		defer vk.DestroyInstance(in, nil)
		all, err := candidates(in)
		if err != nil {
			return err
		}
		for _, c := range all {
			out = append(out, c.info)
		}
		if len(out) == 0 {
			return fmt.Errorf("vulkan: %w: the loader knows none", ErrUnavailable)
		}
		return nil
	})
	return out, err
}

// device is an open device.
type device struct {
	instance    vk.Instance
	handle      vk.Device
	d           *C.tv_device
	c           candidate
	jobs, moves vk.Queue
	queue       sync.Mutex  // submissions come from several goroutines
	fault       *Fault      // nil outside of tests
	away        atomic.Bool // a build with faults took it away
	gone        atomic.Bool
}

// submit hands a list to one of the device's recorders.
func (d *device) submit(by *C.tv_device, list []uint32, host int) C.int {
	if d.fault.lost(true) || d.taken() {
		return lostResult
	}
	d.queue.Lock()
	defer d.queue.Unlock()
	return C.tv_submit(by, (*C.uint32_t)(unsafe.Pointer(&list[0])), C.size_t(len(list)), C.int(host))
}

// taken tells whether the device is gone in a build with faults: once it is, it stays away.
func (d *device) taken() bool {
	if fault.On && !d.away.Load() && fault.DeviceLost() != nil {
		d.away.Store(true)
	}
	return d.away.Load()
}

// wait waits until all has run that one of the recorders was given.
func (d *device) wait(by *C.tv_device) C.int {
	r := C.tv_wait(by)
	if d.fault.lost(false) || d.away.Load() {
		return lostResult
	}
	return r
}

// allocate takes memory of a type.
func (d *device) allocate(n uint64, typ uint32, mapped int, b *C.tv_block) C.int {
	if d.fault.refused(int64(n)) {
		return refusedResult
	}
	var got C.tv_block // by itself: its address goes to C
	r := C.tv_allocate(d.d, C.uint64_t(n), C.uint32_t(typ), C.int(mapped), &got)
	*b = got
	return r
}

// release gives back what allocate or an import took.
func (d *device) release(b *C.tv_block) {
	gone := *b
	C.tv_release(d.d, &gone)
}

// recorder prepares recording for what computes, with a pipeline cache that has the contents cache, or for what copies.
func (d *device) recorder(computes bool, cache []byte) *C.tv_device {
	queue, family, jobs := d.jobs, d.c.family, C.int(1)
	if !computes {
		queue, family, jobs = d.moves, d.c.moves, 0
	}
	families := [2]C.uint32_t{C.uint32_t(d.c.family), C.uint32_t(d.c.moves)}
	p, spin := unsafe.Pointer(unsafe.SliceData(cache)), pollFor
	if d.c.info.Kind == Software {
		spin = 0 // the driver needs the processor
	}
	return C.tv_open(loader, unsafe.Pointer(d.instance), unsafe.Pointer(d.handle), unsafe.Pointer(queue), C.uint32_t(family), &families[0], pushBytes, C.uint32_t(spin), jobs, p, C.size_t(len(cache)))
}

// choose picks the device that is asked for.
func choose(all []candidate, o *Options) (*candidate, error) {
	for i := range all {
		all[i].judge(o.Mask)
	}
	if o.Device < 0 || o.Device > len(all) {
		return nil, fmt.Errorf("vulkan: %w: device %d of %d", ErrUnavailable, o.Device, len(all))
	}
	if o.Device > 0 {
		c := &all[o.Device-1]
		if !c.info.Usable() {
			return nil, fmt.Errorf("vulkan: %w: %s cannot be used: %s", ErrUnavailable, c.info.Name, c.info.Refused)
		}
		return c, nil
	}
	var best *candidate
	var refused []string
	for i := range all {
		c := &all[i]
		if !c.info.Usable() {
			refused = append(refused, c.info.Name+": "+c.info.Refused)
		} else if best == nil || c.info.Kind > best.info.Kind {
			best = c
		}
	}
	if best == nil {
		return nil, fmt.Errorf("vulkan: %w: of %d none can be used (%s)", ErrUnavailable, len(all), strings.Join(refused, "; "))
	}
	return best, nil
}

// pollFor is how long a wait polls before it sleeps, in nanoseconds: waking up costs more than a short wait.
const pollFor = 200_000

// pushBytes is the room for constants of a dispatch, which every device has.
const pushBytes = 128

// openDevice makes the device that o asks for.
func openDevice(o *Options, cache []byte) (dev *device, err error) {
	err = held(func() error {
		if err := anchored(); err != nil {
			return err
		}
		in, err := instance(o.Validate)
		if err != nil {
			return err
		}
		all, err := candidates(in)
		var c *candidate
		if err == nil {
			c, err = choose(all, o)
		}
		if err != nil {
			vk.DestroyInstance(in, nil)
			return err
		}
		dev = &device{instance: in, c: *c, fault: o.Fault}
		if dev.c.f.transfers == 0 {
			dev.c.moves = dev.c.family
		}
		if err := dev.open(cache); err != nil {
			vk.DestroyInstance(in, nil)
			return err
		}
		return nil
	})
	return dev, err
}

func (d *device) open(cache []byte) error {
	chain := C.tv_chain(&d.c.f)
	if chain == nil {
		return errors.New("vulkan: no memory for the features of a device")
	}
	defer C.tv_chain_free(chain)
	var names []string
	for _, e := range []struct {
		name string
		on   C.uint32_t
	}{{"VK_EXT_memory_budget", d.c.f.memory_budget}, {"VK_EXT_external_memory_host", d.c.f.host_import}, {"VK_KHR_portability_subset", d.c.f.portability}} {
		if e.on != 0 {
			names = append(names, e.name+"\x00")
		}
	}
	queues := []vk.DeviceQueueCreateInfo{{
		SType: vk.StructureTypeDeviceQueueCreateInfo, QueueFamilyIndex: d.c.family, QueueCount: 1, PQueuePriorities: []float32{1},
	}}
	if d.c.moves != d.c.family {
		queues = append(queues, vk.DeviceQueueCreateInfo{
			SType: vk.StructureTypeDeviceQueueCreateInfo, QueueFamilyIndex: d.c.moves, QueueCount: 1, PQueuePriorities: []float32{0.5},
		})
	}
	info := vk.DeviceCreateInfo{
		SType: vk.StructureTypeDeviceCreateInfo, PNext: chain, QueueCreateInfoCount: uint32(len(queues)), PQueueCreateInfos: queues,
		EnabledExtensionCount: uint32(len(names)), PpEnabledExtensionNames: names,
	}
	var handle vk.Device // by itself: its address goes to C
	if r := vk.CreateDevice(d.c.handle, &info, nil, &handle); r != vk.Success {
		return fmt.Errorf("vulkan: %s: the device was not made: %s", d.c.info.Name, result(int(r)))
	}
	d.handle = handle
	var jobs, moves vk.Queue
	vk.GetDeviceQueue(d.handle, d.c.family, 0, &jobs)
	vk.GetDeviceQueue(d.handle, d.c.moves, 0, &moves)
	d.jobs, d.moves = jobs, moves
	d.d = d.recorder(true, cache)
	if d.d == nil {
		vk.DestroyDevice(d.handle, nil)
		return fmt.Errorf("vulkan: %s: no memory for the objects of a device", d.c.info.Name)
	}
	return nil
}

// free says how much of a heap may be used now, as the device tells.
func (d *device) heaps() C.tv_memory {
	var m C.tv_memory
	C.tv_heaps(loader, unsafe.Pointer(d.instance), unsafe.Pointer(d.c.handle), C.int(d.c.f.memory_budget), &m)
	return m
}

func (d *device) close() {
	C.tv_close(d.d)
	_ = held(func() error {
		vk.DestroyDevice(d.handle, nil)
		vk.DestroyInstance(d.instance, nil)
		return nil
	})
}

// result names a VkResult.
func result(r int) string {
	names := map[int]string{-1: "out of host memory", -2: "out of device memory", -3: "initialisation failed", -4: "the device was lost",
		-5: "a memory map failed", -6: "a layer is missing", -7: "an extension is missing", -8: "a feature is missing", -9: "no driver fits",
		-10: "too many objects", -13: "an unknown error"}
	if s, ok := names[r]; ok {
		return s
	}
	return fmt.Sprintf("result %d", r)
}

// lostResult is VK_ERROR_DEVICE_LOST, refusedResult VK_ERROR_OUT_OF_DEVICE_MEMORY.
const lostResult, refusedResult = -4, -2

// check turns a VkResult into an error.
func (d *device) check(what string, r C.int) error {
	switch r {
	case 0:
		return nil
	case lostResult:
		d.gone.Store(true)
		return fmt.Errorf("vulkan: %s: %s: %w", d.c.info.Name, what, ErrLost)
	}
	return fmt.Errorf("vulkan: %s: %s: %s", d.c.info.Name, what, result(int(r)))
}
