import { unreachable } from '../../../src/base/errors.ts'
import {
  NFPROTO_IPV4,
  NFT_DATA_VERDICT,
  NFT_META_IIFNAME,
  NFT_META_L4PROTO,
  NFT_META_NFPROTO,
  NFT_META_OIFNAME,
  NFT_REG_1,
  NFT_REG_4,
  NFT_REG_VERDICT,
  NFT_REG32_00,
  NFT_REG32_15,
  NFT_SET_EVAL,
  NFT_SET_MAP,
  NFT_SET_TIMEOUT,
  NFTA_RULE_EXPRESSIONS,
} from '../../../src/kernel/nft/constants.ts'
import type { ExpressionAttributes } from '../../../src/kernel/nft/schema.ts'
import { type Call, itemOffset, refuse } from './call.ts'
import { checkExtension, type Surroundings } from './extensions.ts'
import type { FakeSet, FakeTable } from './objects.ts'

/**
 * What the kernel checks of a rule on its own: that sets and chains exist and are of the right kind, and that no
 * register is read before something wrote it (ENODATA; kernels before 6.18 let that pass).
 */
export function checkExpressions(
  call: Call,
  surroundings: Surroundings,
  expressions: readonly ExpressionAttributes[],
): void {
  const check = new RuleCheck(surroundings)
  for (const [i, expression] of expressions.entries()) {
    call.journal.blame = () => itemOffset(call, NFTA_RULE_EXPRESSIONS, i)
    // nft_expr_type_get: one of the family, or one for all.
    const { absent } = call.space
    const { tag } = expression
    const extension = tag === 'match' || tag === 'target' ? ` ${expression.data.name}` : ''
    const names = [tag, `${call.family} ${tag}`, `${call.family} ${tag}${extension}`]
    if (names.some(name => absent.has(name))) refuse('ENOENT')
    check.expression(expression)
  }
  call.journal.blame = undefined
}

type Of<Tag extends ExpressionAttributes['tag']> = Extract<ExpressionAttributes, { tag: Tag }>

class RuleCheck {
  readonly #table: FakeTable
  readonly #surroundings: Surroundings
  readonly #written = new Set<number>()

  constructor(surroundings: Surroundings) {
    this.#table = surroundings.table
    this.#surroundings = surroundings
  }

  expression(expression: ExpressionAttributes): void {
    switch (expression.tag) {
      case 'unknown':
        // It comes in compiled rules alone, which say it in bytes.
        if (expression.name !== 'range') refuse('ENOENT')
        break
      case 'payload':
        this.#access(expression.data, expression.data.length)
        break
      case 'meta':
        this.#access(expression.data, metaLength(expression.data.key))
        break
      case 'ct':
      case 'fib':
        this.#store(expression.data.dreg, 4)
        break
      case 'numgen':
        if ((expression.data.modulus ?? 0) === 0) refuse('ERANGE')
        this.#store(expression.data.dreg, 4)
        break
      case 'hash':
        if ((expression.data.modulus ?? 0) <= 1) refuse('ERANGE')
        this.#load(expression.data.sreg, expression.data.length)
        this.#store(expression.data.dreg, 4)
        break
      case 'cmp':
        this.#load(expression.data.sreg, expression.data.data?.value?.length)
        break
      case 'bitwise':
        this.#bitwise(expression)
        break
      case 'lookup':
        this.#lookup(expression)
        break
      case 'immediate':
        this.#immediate(expression)
        break
      case 'nat':
        this.#nat(expression)
        break
      case 'dynset':
        this.#dynset(expression)
        break
      case 'match':
      case 'target':
        checkExtension(expression, this.#surroundings)
        break
      case 'masq':
      case 'reject':
      case 'counter':
      case 'limit':
      case 'log':
        break
      default:
        unreachable(expression)
    }
  }

  /** Reads where there is a source register, writes otherwise. */
  #access(
    { dreg, sreg }: { readonly dreg?: number | undefined; readonly sreg?: number | undefined },
    length: number | undefined,
  ): void {
    if (sreg === undefined) this.#store(dreg, length)
    else this.#load(sreg, length)
  }

  #store(register: number | undefined, length: number | undefined): void {
    for (const at of registers(register, length)) this.#written.add(at)
  }

  #load(register: number | undefined, length: number | undefined): void {
    for (const at of registers(register, length)) if (!this.#written.has(at)) refuse('ENODATA')
  }

  #bitwise({ data }: Of<'bitwise'>): void {
    const { length, mask, xor } = data
    if (mask?.value?.length !== length || xor?.value?.length !== length) refuse('EINVAL')
    this.#load(data.sreg, length)
    this.#store(data.dreg, length)
  }

  #set(name: string | undefined): FakeSet {
    return this.#table.sets.get(name ?? '') ?? refuse('ENOENT')
  }

  #lookup({ data }: Of<'lookup'>): void {
    const set = this.#set(data.set)
    this.#load(data.sreg, set.keyLength)
    if (data.dreg === undefined) return
    if ((set.flags & NFT_SET_MAP) === 0) refuse('EINVAL')
    const wantsVerdict = data.dreg === NFT_REG_VERDICT
    if (wantsVerdict !== (set.dataType === NFT_DATA_VERDICT)) refuse('EINVAL')
    if (!wantsVerdict) this.#store(data.dreg, set.dataLength)
  }

  #immediate({ data }: Of<'immediate'>): void {
    const verdict = data.data?.verdict
    if (verdict === undefined) {
      this.#store(data.dreg, data.data?.value?.length)
      return
    }
    if (data.dreg !== NFT_REG_VERDICT) refuse('EINVAL')
    if (verdict.chain === undefined) return
    const target = this.#table.chains.get(verdict.chain) ?? refuse('ENOENT')
    if (target.hook !== undefined) refuse('EOPNOTSUPP')
  }

  #nat({ data }: Of<'nat'>): void {
    if (data.family !== this.#table.family) refuse('EAFNOSUPPORT')
    if (data.addressMin !== undefined) this.#load(data.addressMin, data.family === NFPROTO_IPV4 ? 4 : 16)
    if (data.portMin !== undefined) this.#load(data.portMin, 2)
  }

  #dynset({ data }: Of<'dynset'>): void {
    const set = this.#set(data.set)
    if ((set.flags & NFT_SET_EVAL) === 0) refuse('EOPNOTSUPP')
    if (data.timeout !== undefined && (set.flags & NFT_SET_TIMEOUT) === 0) refuse('EOPNOTSUPP')
    const isMap = (set.flags & NFT_SET_MAP) !== 0
    if (isMap !== (data.dataReg !== undefined)) refuse(isMap ? 'EINVAL' : 'EOPNOTSUPP')
    this.#load(data.keyReg, set.keyLength)
    if (isMap) this.#load(data.dataReg, set.dataLength)
  }
}

/** The 32-bit registers that `length` bytes from `register` fill. */
function registers(register: number | undefined, length: number | undefined): readonly number[] {
  if (register === undefined || length === undefined || length === 0) return refuse('EINVAL')
  const first = register32(register)
  const count = Math.ceil(length / 4)
  if (first + count > 16) refuse('ERANGE')
  return Array.from({ length: count }, (_, i) => first + i)
}

function register32(register: number): number {
  if (register >= NFT_REG_1 && register <= NFT_REG_4) return (register - NFT_REG_1) * 4
  if (register >= NFT_REG32_00 && register <= NFT_REG32_15) return register - NFT_REG32_00
  return refuse('ERANGE')
}

function metaLength(key: number | undefined): number {
  if (key === NFT_META_L4PROTO || key === NFT_META_NFPROTO) return 1
  return key === NFT_META_IIFNAME || key === NFT_META_OIFNAME ? 16 : 4
}
