import { describe, expect, it } from 'vitest'
import { acceptFor, withoutManagedFields } from '../../../../../src/source/kube/wire/encodings.ts'

describe('acceptFor', () => {
  it('asks for the configured type, and for JSON from servers that have nothing else', () => {
    expect(acceptFor('application/vnd.kubernetes.protobuf')).toBe(
      'application/vnd.kubernetes.protobuf, application/json',
    )
    expect(acceptFor('application/json')).toBe('application/json')
  })

  it('does not ask for what cannot be read', () => {
    expect(acceptFor('application/cbor')).toBe('application/json')
    expect(acceptFor('')).toBe('application/json')
    const protobuf = 'application/vnd.kubernetes.protobuf'
    expect(acceptFor(protobuf, 'application/cbor, application/json;q=0.5')).toBe('application/json;q=0.5')
    expect(acceptFor(protobuf, 'application/cbor')).toBe(
      'application/vnd.kubernetes.protobuf, application/json',
    )
  })

  it('asks for what is configured to be acceptable instead', () => {
    expect(acceptFor('application/json', 'application/vnd.kubernetes.protobuf')).toBe(
      'application/vnd.kubernetes.protobuf',
    )
  })
})

it('managedFields are dropped from each media type, whatever its other parameters', () => {
  expect(withoutManagedFields('application/vnd.kubernetes.protobuf, application/json;q=0.5')).toBe(
    'application/vnd.kubernetes.protobuf;drop=metadata.managedFields, application/json;drop=metadata.managedFields;q=0.5',
  )
  expect(withoutManagedFields('application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1')).toBe(
    'application/json;drop=metadata.managedFields;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1',
  )
})
