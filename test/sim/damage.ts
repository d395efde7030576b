import type { Random } from '../support/apiserver/random.ts'
import type { FakeKernel } from '../support/fake-kernel/kernel.ts'

/** Somebody else at the kernel's tables, or the kernel itself out of sorts. Gives what was done, in words. */
export function damage(kernel: FakeKernel, random: Random): string {
  const [name, table] = [...kernel.space.tables][0] ?? []
  const dice = random.int(0, 9)
  if (dice < 3 || name === undefined || table === undefined) return refuse(kernel, random)
  kernel.generation++
  if (dice < 5) {
    kernel.space.tables.delete(name)
    return `delete table ${name}`
  }
  const sets = [...table.sets.values()].filter(({ elements }) => elements.size > 0)
  if (sets.length === 0) return 'nothing'
  const set = random.pick(sets)
  const key = random.pick([...set.elements.keys()])
  set.elements.delete(key)
  return `delete an element of ${set.name}`
}

function refuse(kernel: FakeKernel, random: Random): string {
  const code = random.pick(['ENOMEM', 'ENOBUFS', 'EINTR', 'EBUSY'])
  let left = random.int(1, 3)
  kernel.forced.push({ code, matches: () => left-- > 0 })
  return `${left} refusals with ${code}`
}
