# Guarded routines (System V calling convention): 0 in %rax, or 1 after a fault. See guard.rs.
    .text
    .p2align 6
    .globl anyverbs_guard_begin
    .hidden anyverbs_guard_begin
anyverbs_guard_begin:

# copy(%rdi dst, %rsi src, %rdx len): blocks are loaded before they are stored, the tail is stored last.
    .globl anyverbs_guard_copy
    .hidden anyverbs_guard_copy
    .type anyverbs_guard_copy, @function
anyverbs_guard_copy:
    .cfi_startproc
    xorl %eax, %eax
    cmpq $16, %rdx
    ja 3f
    cmpl $8, %edx
    jae 2f
    cmpl $4, %edx
    jae 1f
    testl %edx, %edx
    jz 9f
    movzbl (%rsi), %ecx
    cmpl $1, %edx
    je 0f
    movzwl -2(%rsi,%rdx), %r8d
    movb %cl, (%rdi)
    movw %r8w, -2(%rdi,%rdx)
9:  ret
0:  movb %cl, (%rdi)
    ret
1:  movl (%rsi), %ecx
    movl -4(%rsi,%rdx), %r8d
    movl %ecx, (%rdi)
    movl %r8d, -4(%rdi,%rdx)
    ret
2:  movq (%rsi), %rcx
    movq -8(%rsi,%rdx), %r8
    movq %rcx, (%rdi)
    movq %r8, -8(%rdi,%rdx)
    ret
3:  cmpq $32, %rdx
    ja 4f
    movups (%rsi), %xmm0
    movups -16(%rsi,%rdx), %xmm1
    movups %xmm0, (%rdi)
    movups %xmm1, -16(%rdi,%rdx)
    ret
4:  cmpq $64, %rdx
    ja 5f
    movups (%rsi), %xmm0
    movups 16(%rsi), %xmm1
    movups -32(%rsi,%rdx), %xmm2
    movups -16(%rsi,%rdx), %xmm3
    movups %xmm0, (%rdi)
    movups %xmm1, 16(%rdi)
    movups %xmm2, -32(%rdi,%rdx)
    movups %xmm3, -16(%rdi,%rdx)
    ret
# The last 64 bytes wait in %xmm4 to %xmm7 while whole blocks go before them.
5:  movups -64(%rsi,%rdx), %xmm4
    movups -48(%rsi,%rdx), %xmm5
    movups -32(%rsi,%rdx), %xmm6
    movups -16(%rsi,%rdx), %xmm7
    leaq -64(%rdi,%rdx), %r8
    cmpq $1024, %rdx
    jae 7f
6:  movups (%rsi), %xmm0
    movups 16(%rsi), %xmm1
    movups 32(%rsi), %xmm2
    movups 48(%rsi), %xmm3
    addq $64, %rsi
    movups %xmm0, (%rdi)
    movups %xmm1, 16(%rdi)
    movups %xmm2, 32(%rdi)
    movups %xmm3, 48(%rdi)
    addq $64, %rdi
    cmpq %r8, %rdi
    jb 6b
    jmp 8f
# The first block is stored unaligned, and the string copy starts at an aligned destination. By words, which emulated processors move
# eight times as fast as bytes; the last one may reach into the last 64 bytes, which are stored after it.
7:  movups (%rsi), %xmm0
    movups 16(%rsi), %xmm1
    movups 32(%rsi), %xmm2
    movups 48(%rsi), %xmm3
    movq %rdi, %rcx
    addq $64, %rdi
    andq $-64, %rdi
    movups %xmm0, (%rcx)
    movups %xmm1, 16(%rcx)
    movups %xmm2, 32(%rcx)
    movups %xmm3, 48(%rcx)
    subq %rdi, %rcx
    subq %rcx, %rsi
    movq %r8, %rcx
    subq %rdi, %rcx
    addq $7, %rcx
    shrq $3, %rcx
    rep movsq
8:  movups %xmm4, (%r8)
    movups %xmm5, 16(%r8)
    movups %xmm6, 32(%r8)
    movups %xmm7, 48(%r8)
    ret
    .cfi_endproc
    .size anyverbs_guard_copy, . - anyverbs_guard_copy

# copy_folding(%rdi dst, %rsi src, %rdx len, %rcx folded, %r8 constants): whole blocks of 256 bytes, at least one. What is copied is folded on
# its way: 64 bytes at `folded` have the CRC of all of it. The constants fold over 256 and over 64 bytes. For CPUs with AVX-512F and VPCLMULQDQ.
    .p2align 6
    .globl anyverbs_guard_copy_folding
    .hidden anyverbs_guard_copy_folding
    .type anyverbs_guard_copy_folding, @function
anyverbs_guard_copy_folding:
    .cfi_startproc
    xorl %eax, %eax
    vbroadcasti32x4 (%r8), %zmm16
    vmovdqu64 (%rsi), %zmm0
    vmovdqu64 64(%rsi), %zmm1
    vmovdqu64 128(%rsi), %zmm2
    vmovdqu64 192(%rsi), %zmm3
    vmovdqu64 %zmm0, (%rdi)
    vmovdqu64 %zmm1, 64(%rdi)
    vmovdqu64 %zmm2, 128(%rdi)
    vmovdqu64 %zmm3, 192(%rdi)
    subq $256, %rdx
    jz 1f
0:  addq $256, %rsi
    addq $256, %rdi
    vmovdqu64 (%rsi), %zmm4
    vmovdqu64 64(%rsi), %zmm5
    vmovdqu64 128(%rsi), %zmm6
    vmovdqu64 192(%rsi), %zmm7
    vmovdqu64 %zmm4, (%rdi)
    vmovdqu64 %zmm5, 64(%rdi)
    vmovdqu64 %zmm6, 128(%rdi)
    vmovdqu64 %zmm7, 192(%rdi)
    vpclmulqdq $0x00, %zmm16, %zmm0, %zmm17
    vpclmulqdq $0x00, %zmm16, %zmm1, %zmm18
    vpclmulqdq $0x00, %zmm16, %zmm2, %zmm19
    vpclmulqdq $0x00, %zmm16, %zmm3, %zmm20
    vpclmulqdq $0x11, %zmm16, %zmm0, %zmm0
    vpclmulqdq $0x11, %zmm16, %zmm1, %zmm1
    vpclmulqdq $0x11, %zmm16, %zmm2, %zmm2
    vpclmulqdq $0x11, %zmm16, %zmm3, %zmm3
    vpternlogq $0x96, %zmm17, %zmm4, %zmm0
    vpternlogq $0x96, %zmm18, %zmm5, %zmm1
    vpternlogq $0x96, %zmm19, %zmm6, %zmm2
    vpternlogq $0x96, %zmm20, %zmm7, %zmm3
    subq $256, %rdx
    jnz 0b
1:  vbroadcasti32x4 16(%r8), %zmm16
    vpclmulqdq $0x00, %zmm16, %zmm0, %zmm17
    vpclmulqdq $0x11, %zmm16, %zmm0, %zmm0
    vpternlogq $0x96, %zmm17, %zmm0, %zmm1
    vpclmulqdq $0x00, %zmm16, %zmm1, %zmm17
    vpclmulqdq $0x11, %zmm16, %zmm1, %zmm0
    vpternlogq $0x96, %zmm17, %zmm0, %zmm2
    vpclmulqdq $0x00, %zmm16, %zmm2, %zmm17
    vpclmulqdq $0x11, %zmm16, %zmm2, %zmm0
    vpternlogq $0x96, %zmm17, %zmm0, %zmm3
    vmovdqu64 %zmm3, (%rcx)
    vzeroupper
    ret
    .cfi_endproc
    .size anyverbs_guard_copy_folding, . - anyverbs_guard_copy_folding

# copy_folding_narrow: the same in 16 bytes at a time, for CPUs with AVX and PCLMULQDQ. The constants fold over 128 and over 64 bytes. Eight sums
# at once: one multiplication takes longer than it keeps others waiting.
    .p2align 6
    .globl anyverbs_guard_copy_folding_narrow
    .hidden anyverbs_guard_copy_folding_narrow
    .type anyverbs_guard_copy_folding_narrow, @function
anyverbs_guard_copy_folding_narrow:
    .cfi_startproc
    xorl %eax, %eax
    vmovdqu (%r8), %xmm15
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7
    vmovdqu 16*\n(%rsi), %xmm\n
    vmovdqu %xmm\n, 16*\n(%rdi)
    .endr
    subq $128, %rdx
    jz 1f
0:  addq $128, %rsi
    addq $128, %rdi
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7
    vmovdqu 16*\n(%rsi), %xmm8
    vpclmulqdq $0x00, %xmm15, %xmm\n, %xmm9
    vpclmulqdq $0x11, %xmm15, %xmm\n, %xmm\n
    vmovdqu %xmm8, 16*\n(%rdi)
    vpxor %xmm8, %xmm9, %xmm9
    vpxor %xmm9, %xmm\n, %xmm\n
    .endr
    subq $128, %rdx
    jnz 0b
1:  vmovdqu 16(%r8), %xmm15
    .irp n, 0, 1, 2, 3
    vpclmulqdq $0x00, %xmm15, %xmm\n, %xmm9
    vpclmulqdq $0x11, %xmm15, %xmm\n, %xmm\n
    vpxor %xmm9, %xmm\n, %xmm\n
    .endr
    vpxor %xmm0, %xmm4, %xmm4
    vpxor %xmm1, %xmm5, %xmm5
    vpxor %xmm2, %xmm6, %xmm6
    vpxor %xmm3, %xmm7, %xmm7
    vmovdqu %xmm4, (%rcx)
    vmovdqu %xmm5, 16(%rcx)
    vmovdqu %xmm6, 32(%rcx)
    vmovdqu %xmm7, 48(%rcx)
    ret
    .cfi_endproc
    .size anyverbs_guard_copy_folding_narrow, . - anyverbs_guard_copy_folding_narrow

# fetch_add(%rdi at, %rsi add, %rdx old)
    .p2align 4
    .globl anyverbs_guard_fetch_add
    .hidden anyverbs_guard_fetch_add
    .type anyverbs_guard_fetch_add, @function
anyverbs_guard_fetch_add:
    .cfi_startproc
    lock xaddq %rsi, (%rdi)
    movq %rsi, (%rdx)
    xorl %eax, %eax
    ret
    .cfi_endproc
    .size anyverbs_guard_fetch_add, . - anyverbs_guard_fetch_add

# compare_swap(%rdi at, %rsi expect, %rdx swap, %rcx old)
    .p2align 4
    .globl anyverbs_guard_compare_swap
    .hidden anyverbs_guard_compare_swap
    .type anyverbs_guard_compare_swap, @function
anyverbs_guard_compare_swap:
    .cfi_startproc
    movq %rsi, %rax
    lock cmpxchgq %rdx, (%rdi)
    movq %rax, (%rcx)
    xorl %eax, %eax
    ret
    .cfi_endproc
    .size anyverbs_guard_compare_swap, . - anyverbs_guard_compare_swap

    .globl anyverbs_guard_end
    .hidden anyverbs_guard_end
anyverbs_guard_end:
    .globl anyverbs_guard_failed
    .hidden anyverbs_guard_failed
    .type anyverbs_guard_failed, @function
anyverbs_guard_failed:
    .cfi_startproc
    movl $1, %eax
    ret
    .cfi_endproc
    .size anyverbs_guard_failed, . - anyverbs_guard_failed
