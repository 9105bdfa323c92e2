// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The packets of user queues: AQL (HSA's specification) and SDMA. No shader runs. */
#include "gpu.h"
#include "symbols.h"

#define AQL_SIZE 64
#define DEPENDENCIES 5
/* The number of bits of an event's number in an interrupt of a compute or SDMA queue. */
#define AQL_EVENT_BITS 32
#define SDMA_EVENT_BITS 28

enum { VENDOR = 0, INVALID = 1, DISPATCH = 2, BARRIER_AND = 3, BARRIER_OR = 5 };
enum { FORMAT_BARRIER_VALUE = 2 };

/* The fields of HSA's dispatch packet that this module uses. Other packets have `type` and `completion`, too. */
struct aql_packet {
	u8 type;
	u8 fences;
	u8 format;
	u8 setup;
	u32 unused[2];
	u32 grid_x;
	u64 unused2[2];
	u64 kernel;
	u64 arguments;
	u64 unused3;
	u64 completion;
};
static_assert(sizeof(struct aql_packet) == AQL_SIZE);
static_assert(offsetof(struct aql_packet, grid_x) == 12);
static_assert(offsetof(struct aql_packet, kernel) == 32);

struct barrier_packet {
	u64 header;
	u64 dependencies[DEPENDENCIES];
};

struct barrier_value_packet {
	u64 header;
	u64 signal;
	s64 value;
	s64 mask;
	u32 condition;
};

/* The offsets of fields in amd_signal_t of AMD's runtime. */
enum {
	SIGNAL_VALUE = 8,
	SIGNAL_MAILBOX = 16,
	SIGNAL_EVENT = 24,
	SIGNAL_START = 32,
	SIGNAL_END = 40,
};

static void signal_event(struct operation_data *data)
{
	amd.kfd_signal_event_interrupt(data->pasid, data->to, data->size);
}

/* Sends the interrupt of an event. `bits` is the number of valid bits of `event`. */
static void interrupt(struct access *a, u32 event, u32 bits)
{
	struct operation_data data = { .pasid = a->gpu->spaces[a->space].pasid, .to = event, .size = bits };
	struct fault fault = next_fault(INTERRUPT);

	if (fault.effect == LATE)
		perform_late(fault.time_us, signal_event, data);
	else if (fault.effect != LOST)
		signal_event(&data);
}

static int complete_packet(struct access *a, u64 signal, u64 start)
{
	u64 end = gpu_clock(a->gpu->adev), mailbox, event = 0;

	if (!signal)
		return 0;
	if (user_write(a, signal + SIGNAL_START, &start, sizeof(start)) ||
	    user_write(a, signal + SIGNAL_END, &end, sizeof(end)) ||
	    user_read(a, signal + SIGNAL_MAILBOX, &mailbox, sizeof(mailbox)) ||
	    user_read(a, signal + SIGNAL_EVENT, &event, sizeof(u32)) ||
	    user_add64(a, signal + SIGNAL_VALUE, -1))
		return -EFAULT;
	if (!mailbox)
		return 0;
	if (user_write(a, mailbox, &event, sizeof(event)))
		return -EFAULT;
	interrupt(a, event, AQL_EVENT_BITS);
	return 0;
}

/* Returns 1 if the packet can run, 0 if the packet must wait, or a negative number after a page fault. */
static int check_barrier(struct access *a, const struct barrier_packet *p, bool all)
{
	int pending = 0, satisfied = 0;

	for (int i = 0; i < DEPENDENCIES; i++) {
		s64 value;

		if (!p->dependencies[i])
			continue;
		if (user_read(a, p->dependencies[i] + SIGNAL_VALUE, &value, sizeof(value)))
			return -EFAULT;
		if (value)
			pending++;
		else
			satisfied++;
	}
	return all ? !pending : satisfied || !pending;
}

static int check_barrier_value(struct access *a, const struct barrier_value_packet *p)
{
	s64 value;

	if (!p->signal)
		return 1;
	if (user_read(a, p->signal + SIGNAL_VALUE, &value, sizeof(value)))
		return -EFAULT;
	value &= p->mask;
	switch (p->condition) {
	case 0:
		return value == p->value;
	case 1:
		return value != p->value;
	case 2:
		return value < p->value;
	default:
		return value >= p->value;
	}
}

static int dispatch(struct access *a, const struct aql_packet *p)
{
	int status = run_blit_kernel(a, p->kernel, p->arguments, p->grid_x);

	a->gpu->dispatches++;
	if (!status)
		dev_warn_ratelimited(a->gpu->adev->dev,
				     "hsa_vmm: unknown kernel %#llx: completed without running\n",
				     p->kernel);
	return min(status, 0);
}

int run_aql_packet(struct access *a, struct user_queue *queue)
{
	u64 address = queue->base + queue->rptr * AQL_SIZE % queue->size;
	u64 start = gpu_clock(a->gpu->adev);
	const u16 invalid = INVALID;
	struct aql_packet p;
	int status = 1;

	if (user_read(a, address, &p, sizeof(p)))
		return -EFAULT;
	switch (p.type) {
	case INVALID: /* the program has not written the packet yet */
		return 0;
	case BARRIER_AND:
	case BARRIER_OR:
		status = check_barrier(a, (const void *)&p, p.type == BARRIER_AND);
		break;
	case VENDOR:
		if (p.format == FORMAT_BARRIER_VALUE)
			status = check_barrier_value(a, (const void *)&p);
		break;
	case DISPATCH:
		status = dispatch(a, &p) ?: 1;
		break;
	}
	if (status <= 0)
		return status;
	if (user_write(a, address, &invalid, sizeof(invalid)))
		return -EFAULT;
	queue->rptr++;
	a->gpu->packets++;
	return complete_packet(a, p.completion, start) ?: 1;
}

enum {
	SDMA_NOP = 0,
	SDMA_COPY = 1,
	SDMA_FENCE = 5,
	SDMA_TRAP = 6,
	SDMA_POLL = 8,
	SDMA_ATOMIC = 10,
	SDMA_FILL = 11,
	SDMA_TIMESTAMP = 13,
	SDMA_GCR = 17,
};
#define SDMA_MAX_DWORDS 8

static u64 quad(const u32 *words, int n)
{
	return words[n] | (u64)words[n + 1] << 32;
}

/* Returns 1 if the condition holds, 0 if not, or a negative number after a page fault. */
static int poll_memory(struct access *a, const u32 *w)
{
	u32 value, reference = w[3];

	/* Without bit 31, the packet polls a register. A software GPU has no registers, so the condition holds. */
	if (!(w[0] >> 31))
		return 1;
	if (user_read(a, quad(w, 1), &value, sizeof(value)))
		return -EFAULT;
	value &= w[4];
	switch (w[0] >> 28 & 7) {
	case 0:
		return 1;
	case 1:
		return value < reference;
	case 2:
		return value <= reference;
	case 3:
		return value == reference;
	case 4:
		return value != reference;
	case 5:
		return value >= reference;
	default:
		return value > reference;
	}
}

/* Executes a packet. Returns its length in dwords, 0 if the packet must wait, or a negative error. */
static int execute_sdma(struct access *a, const u32 *w)
{
	u64 now;
	int status;

	switch (w[0] & 0xff) {
	case SDMA_NOP:
		return 1 + (w[0] >> 16 & 0x3fff);
	case SDMA_COPY:
		return user_copy(a, quad(w, 3), quad(w, 5), (u64)(w[1] & 0x3fffffff) + 1) ?: 7;
	case SDMA_FENCE:
		return user_write(a, quad(w, 1), &w[3], sizeof(w[3])) ?: 4;
	case SDMA_TRAP:
		interrupt(a, w[1] & 0xfffffff, SDMA_EVENT_BITS);
		return 2;
	case SDMA_POLL:
		status = poll_memory(a, w);
		return status > 0 ? 6 : status;
	case SDMA_ATOMIC:
		return user_add64(a, quad(w, 1), quad(w, 3)) ?: 8;
	case SDMA_FILL:
		return user_fill(a, quad(w, 1), w[3], (u64)(w[4] & 0x3ffffffc) + 4) ?: 5;
	case SDMA_TIMESTAMP:
		now = gpu_clock(a->gpu->adev);
		return user_write(a, quad(w, 1), &now, sizeof(now)) ?: 3;
	case SDMA_GCR:
		return 5;
	}
	dev_err_ratelimited(a->gpu->adev->dev, "hsa_vmm: user SDMA: unknown packet %#x\n", w[0]);
	return -EINVAL;
}

int run_sdma_packet(struct access *a, struct user_queue *queue)
{
	u32 words[SDMA_MAX_DWORDS] = { };
	u64 offset = queue->rptr % queue->size;
	u64 size = min_t(u64, queue->wptr - queue->rptr, sizeof(words));
	u64 first = min(size, queue->size - offset);
	int length;

	if (user_read(a, queue->base + offset, words, first) ||
	    user_read(a, queue->base, (char *)words + first, size - first))
		return -EFAULT;
	length = execute_sdma(a, words);
	if (length <= 0)
		return length;
	queue->rptr += length * sizeof(u32);
	a->gpu->packets++;
	return 1;
}
