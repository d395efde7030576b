import { type Cidr, parseCidr, whyNotCidr } from '../base/cidr.ts'
import { quote } from './flag-reader.ts'

/** Reads the CIDRs of a list, and calls `fail` for each text that is not one. */
export function readCidrs(
  texts: readonly string[],
  fail: (index: number, message: string) => void,
): readonly Cidr[] {
  const cidrs: Cidr[] = []
  for (const [index, text] of texts.entries()) {
    const cidr = parseCidr(text)
    if (cidr !== undefined) cidrs.push(cidr)
    else fail(index, `${quote(text)} is ${whyNotCidr(text)}`)
  }
  return cidrs
}
