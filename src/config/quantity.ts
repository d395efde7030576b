const DECIMAL: readonly string[] = ['', 'k', 'M', 'G', 'T', 'P', 'E']
const BINARY: readonly string[] = ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei']

/** A size in bytes as Kubernetes writes quantities (`512`, `2k`, `1.5Ki`). */
interface Quantity {
  readonly bytes: bigint
  /**
   * The text as Kubernetes prints it: whole bytes in the shortest form, with the same kind of unit (`1.5Ki` becomes
   * `1536`).
   */
  readonly text: string
}

/** Reads a quantity of bytes, rounded up to whole bytes; undefined if invalid. */
export function parseQuantity(text: string): Quantity | undefined {
  const match = /^([+-]?)(\d*)(?:\.(\d*))?(?:([kMGTPE]|[KMGTPE]i|[num])|[eE]([+-]?\d{1,2}))?$/.exec(
    text.trim(),
  )
  const [, sign = '', whole = '', fraction = '', suffix = '', exponent = '0'] = match ?? []
  if (match === null || (whole === '' && fraction === '') || whole.length + fraction.length > 40)
    return undefined
  const binary = suffix.endsWith('i')
  const scale = (binary ? BINARY : DECIMAL).indexOf(suffix)
  const tens = BigInt(Number(exponent) + decimalShift(suffix, scale, binary) - fraction.length)
  const digits = BigInt(`${whole}${fraction}`) * (binary ? 1_024n ** BigInt(scale) : 1n)
  const size = tens >= 0n ? digits * 10n ** tens : divideUp(digits, 10n ** -tens)
  const bytes = sign === '-' ? -size : size
  const whole10 = exponent === '0' && tens >= 0n
  return { bytes, text: binary || whole10 ? shortest(bytes, binary) : text.trim() }
}

/** Gives the power of ten of a suffix, less the digits of the fraction. */
function decimalShift(suffix: string, scale: number, binary: boolean): number {
  if (binary) return 0
  return scale >= 0 ? scale * 3 : -3 * ('mun'.indexOf(suffix) + 1)
}

function divideUp(value: bigint, by: bigint): bigint {
  return (value + by - 1n) / by
}

function shortest(bytes: bigint, binary: boolean): string {
  const base = binary ? 1_024n : 1_000n
  const units = binary ? BINARY : DECIMAL
  let rest = bytes
  let power = 0
  while (rest !== 0n && rest % base === 0n && power < units.length - 1) {
    rest /= base
    power++
  }
  return `${rest}${units[power]}`
}
