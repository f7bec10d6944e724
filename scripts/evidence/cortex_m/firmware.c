/* Runs a C bundle's check.c on QEMU's mps2-an386, a Cortex-M4 with a floating-point unit, and counts instructions.

   With -icount shift=0 an instruction takes one nanosecond of the board's time, and its SysTick counts at 25 MHz: a
   tick is 40 instructions. Output goes out by semihosting. */

#include <stdint.h>
#include <stdio.h>

void count_begin(void);
void count_end(void);

#define SYST ((volatile uint32_t *)0xE000E010u) /* control, reload, current */
#define CPACR (*(volatile uint32_t *)0xE000ED88u)
#define TOP 0x00FFFFFFu
#define INSTRUCTIONS_A_TICK 40u

extern uint32_t stack_top, data_load, data_start, data_end, bss_start, bss_end;
extern int check_main(void);
void reset(void);

static uint64_t ticks;
static uint32_t calls, began;

static uint32_t host(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void count_begin(void)
{
    began = SYST[2];
}

void count_end(void)
{
    ticks += (began - SYST[2]) & TOP;
    calls++;
}

int _write(int file, const char *text, int length)
{
    int i;
    (void)file;
    for (i = 0; i < length; i++) {
        host(0x03, &text[i]); /* SYS_WRITEC */
    }
    return length;
}

static void fault(void)
{
    printf("the processor faulted\n");
    host(0x18, (const void *)0x20023u); /* SYS_EXIT, internal error */
}

void reset(void)
{
    uint32_t *from = &data_load, *to;
    int status;
    CPACR |= 0xFu << 20; /* the floating-point unit */
    for (to = &data_start; to < &data_end;) {
        *to++ = *from++;
    }
    for (to = &bss_start; to < &bss_end;) {
        *to++ = 0;
    }
    SYST[1] = TOP;
    SYST[2] = 0;
    SYST[0] = 5;
    status = check_main();
    printf("instructions a call: %lu, calls: %lu, check: %s\n",
           (unsigned long)(ticks * INSTRUCTIONS_A_TICK / calls), (unsigned long)calls, status == 0 ? "pass" : "FAIL");
    host(0x18, (const void *)(status == 0 ? 0x20026u : 0x20023u)); /* SYS_EXIT, end of the program or error */
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))&stack_top, reset, fault, fault, fault, fault, fault,
};
