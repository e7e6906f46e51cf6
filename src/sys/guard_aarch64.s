// Guarded routines (AAPCS64): 0 in x0, or 1 after a fault. See guard.rs.
    .text
    .p2align 6
    .globl anyverbs_guard_begin
    .hidden anyverbs_guard_begin
anyverbs_guard_begin:

// copy(x0 dst, x1 src, x2 len): blocks are loaded before they are stored, the tail is stored last, behind a barrier.
    .globl anyverbs_guard_copy
    .hidden anyverbs_guard_copy
    .type anyverbs_guard_copy, %function
anyverbs_guard_copy:
    .cfi_startproc
    add x3, x1, x2
    add x4, x0, x2
    cmp x2, #16
    b.hi 3f
    cmp x2, #8
    b.hs 2f
    cmp x2, #4
    b.hs 1f
    cbz x2, 9f
    ldrb w5, [x1]
    cmp x2, #1
    b.eq 0f
    ldrh w6, [x3, #-2]
    strb w5, [x0]
    dmb ishst
    strh w6, [x4, #-2]
    b 9f
0:  strb w5, [x0]
    b 9f
1:  ldr w5, [x1]
    ldr w6, [x3, #-4]
    str w5, [x0]
    dmb ishst
    str w6, [x4, #-4]
    b 9f
2:  ldr x5, [x1]
    ldr x6, [x3, #-8]
    str x5, [x0]
    dmb ishst
    str x6, [x4, #-8]
    b 9f
3:  cmp x2, #32
    b.hi 5f
    ldr q0, [x1]
    ldr q1, [x3, #-16]
    str q0, [x0]
    dmb ishst
    str q1, [x4, #-16]
    b 9f
5:  ldp q4, q5, [x3, #-32]
    sub x4, x4, #32
    cmp x2, #64
    b.ls 7f
    ldp q6, q7, [x3, #-64]
    sub x7, x4, #32
6:  ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    add x1, x1, #64
    stp q0, q1, [x0]
    stp q2, q3, [x0, #32]
    add x0, x0, #64
    cmp x0, x7
    b.lo 6b
    stp q6, q7, [x7]
    b 8f
7:  ldp q0, q1, [x1]
    stp q0, q1, [x0]
8:  dmb ishst
    stp q4, q5, [x4]
9:  mov x0, #0
    ret
    .cfi_endproc
    .size anyverbs_guard_copy, . - anyverbs_guard_copy

// fetch_add(x0 at, x1 add, x2 old)
    .p2align 4
    .globl anyverbs_guard_fetch_add
    .hidden anyverbs_guard_fetch_add
    .type anyverbs_guard_fetch_add, %function
anyverbs_guard_fetch_add:
    .cfi_startproc
0:  ldaxr x3, [x0]
    add x4, x3, x1
    stlxr w5, x4, [x0]
    cbnz w5, 0b
    dmb ish
    str x3, [x2]
    mov x0, #0
    ret
    .cfi_endproc
    .size anyverbs_guard_fetch_add, . - anyverbs_guard_fetch_add

// compare_swap(x0 at, x1 expect, x2 swap, x3 old)
    .p2align 4
    .globl anyverbs_guard_compare_swap
    .hidden anyverbs_guard_compare_swap
    .type anyverbs_guard_compare_swap, %function
anyverbs_guard_compare_swap:
    .cfi_startproc
0:  ldaxr x4, [x0]
    cmp x4, x1
    b.ne 1f
    stlxr w5, x2, [x0]
    cbnz w5, 0b
    dmb ish
    b 2f
1:  clrex
2:  str x4, [x3]
    mov x0, #0
    ret
    .cfi_endproc
    .size anyverbs_guard_compare_swap, . - anyverbs_guard_compare_swap

    .globl anyverbs_guard_end
    .hidden anyverbs_guard_end
anyverbs_guard_end:
    .globl anyverbs_guard_failed
    .hidden anyverbs_guard_failed
    .type anyverbs_guard_failed, %function
anyverbs_guard_failed:
    .cfi_startproc
    mov x0, #1
    ret
    .cfi_endproc
    .size anyverbs_guard_failed, . - anyverbs_guard_failed
