import type { Box } from './box.ts'
import type { ClassMachine } from './class-machine.ts'

/** So few ways are cheaper to follow than to compare. */
export const MERGED_MIN = 4

/** Joins ways that a random number divided and that went on alike. */
export function merged(machines: readonly ClassMachine[]): ClassMachine[] {
  const byBox = new Map<Box, Map<string, ClassMachine>>()
  const apart: ClassMachine[] = []
  for (const machine of machines) {
    machine.beginRule()
    const { box, mark, connectionMark, priority, to, written, rolled } = machine
    if (rolled !== undefined || machine.single?.dynamic !== machines[0]?.single?.dynamic) {
      apart.push(machine)
      continue
    }
    const key = [
      mark,
      connectionMark,
      priority,
      to?.address,
      to?.port,
      written?.data,
      written?.timeoutMs,
    ].join()
    const alike = byBox.get(box)
    const known = alike?.get(key)
    if (known !== undefined) known.probability += machine.probability
    else if (alike === undefined) byBox.set(box, new Map([[key, machine]]))
    else alike.set(key, machine)
  }
  return [...apart, ...[...byBox.values()].flatMap(alike => [...alike.values()])]
}
