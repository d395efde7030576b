import type { OperationFailure } from '../../kernel/nft/client.ts'
import type { KernelRefusal } from '../../reconcile/dataplane.ts'
import { serviceOfGroup } from './element-group.ts'

/** The kernel's errors for lack of room. The element at which it stopped is not the cause. */
const NO_ROOM: ReadonlySet<string> = new Set(['ENFILE', 'ENOMEM', 'ENOSPC', 'ENOBUFS'])

/** Makes a refusal from one rejected message of an nf_tables batch. */
export function refusalOf({ elements, ...words }: OperationFailure): KernelRefusal {
  return refusalTo(
    elements.flatMap(({ group }) => serviceOfGroup(group) ?? []),
    words,
  )
}

/** Makes a refusal for objects that serve these Services. The error names them. */
export function refusalTo(
  suspects: readonly string[],
  { code, error }: Pick<OperationFailure, 'code' | 'error'>,
): KernelRefusal {
  if (NO_ROOM.has(code)) return { services: [], error }
  const services = new Set(suspects)
  return { services: [...services], error: services.size === 0 ? error : named(error, services) }
}

const SERVICES_NAMED_MAX = 3

function named(error: Error, services: ReadonlySet<string>): Error {
  const first = [...services].slice(0, SERVICES_NAMED_MAX).join(', ')
  const more = services.size > SERVICES_NAMED_MAX ? ` and ${services.size - SERVICES_NAMED_MAX} more` : ''
  const noun = services.size === 1 ? 'Service' : 'Services'
  return new Error(`${noun} ${first}${more}: ${error.message}`, { cause: error })
}
